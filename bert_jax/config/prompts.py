"""Defines prompts for classification: a template with one mask, and the label words of each class.

A prompt turns a classification task into masked language modeling (Schick and Schütze 2021, PET;
Gao et al. 2021, LM-BFF): the masked-LM head scores the label words of each class at the mask.

The fields of a template are written in braces:

    {text}, {text_pair}   the first and the second text of an example
    {mask}                the mask token, exactly once
    {sep}                 the border between the two segments of the input, at most once
    {{ and }}             a literal brace

A text may have modifiers, which are applied from left to right:

    {text|no_punctuation}     without punctuation at its end
    {text_pair|lower_first}   with its first letter in lower case

Nothing is tokenized here; see `bert_jax/tasks/prompt_features.py`.
"""

import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bert_jax.errors import ConfigError, check_range, did_you_mean

TextName = Literal["text", "text_pair"]
_TEXT_NAMES: tuple[TextName, ...] = ("text", "text_pair")
_FIELD_NAMES = (*_TEXT_NAMES, "mask", "sep")
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")


@dataclass(frozen=True)
class LiteralPart:
    """Holds text of the template itself, which is never truncated."""

    text: str


@dataclass(frozen=True)
class TextPart:
    """Names a text of the example, and the modifiers that are applied to it."""

    name: TextName
    modifiers: tuple[str, ...] = ()

    def apply_modifiers(self, text: str) -> str:
        """Returns the text after all modifiers."""
        for modifier in self.modifiers:
            text = _MODIFIERS[modifier](text)
        return text


@dataclass(frozen=True)
class MaskPart:
    """Marks the position of the mask token."""


Part = LiteralPart | TextPart | MaskPart
Segments = tuple[tuple[Part, ...], ...]
"""The parts of the first segment and, if the template has {sep}, of the second."""


@dataclass(frozen=True, kw_only=True)
class LabelWords:
    """Lists the words that stand for one class; the score of the class is the mean of theirs."""

    label: str  # a label of the task
    words: tuple[str, ...]  # what stands for it at the mask

    def __post_init__(self) -> None:
        if not self.words or not all(word.strip() for word in self.words):
            raise ConfigError(
                f"prompt.label_words: the label {self.label!r} has the words {list(self.words)}; "
                "expected at least one word, and no empty one"
            )


@dataclass(frozen=True, kw_only=True)
class AllExamples:
    """Draws demonstrations from all examples of a class."""


@dataclass(frozen=True, kw_only=True)
class SimilarExamples:
    """Draws demonstrations from the examples of each class that are most similar to the input.

    The similarity is the cosine of sentence vectors (Gao et al. 2021, section 6.2).

    Attributes:
      vectors: file of JSON lines with "text" and "embedding", as `bert-jax embed` writes them, of
        all inputs and examples; both texts of a pair are joined with a space.
      fraction: the part of a class's examples, the most similar ones, that demonstrations are drawn
        from; their number is rounded down, but is at least one.
    """

    # A file, because the packages that make features run no model.
    vectors: str
    fraction: float = 0.5

    def __post_init__(self) -> None:
        name = "prompt.demonstrations.selection.fraction"
        check_range(name, self.fraction, above=0, at_most=1)


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """Configures demonstrations: training examples, one of each class, after the input (LM-BFF).

    Each is in the template of the prompt, with the first label word of its class in place of the
    mask. Training draws other ones in every epoch. Prediction averages the logits over several
    draws (Gao et al. 2021, section 6).

    Attributes:
      num_samples: number of draws for each example in prediction.
      max_text_tokens: maximum number of tokens of each text of a demonstration, LM-BFF's
        `other_sent_limit`; None for no limit. The end of a sequence that is too long is cut.
      selection: which examples of a class are drawn from.
    """

    num_samples: int = 16
    max_text_tokens: int | None = None
    selection: AllExamples | SimilarExamples = AllExamples()

    def __post_init__(self) -> None:
        check_range("prompt.demonstrations.num_samples", self.num_samples, at_least=1)
        if self.max_text_tokens is not None:
            name = "prompt.demonstrations.max_text_tokens"
            check_range(name, self.max_text_tokens, at_least=1)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Configures a prompt: the template, the label words of each class, and demonstrations.

    Raises:
      ConfigError: the template does not have exactly one mask or has an unknown field, or a label
        is listed twice.
    """

    template: str  # as in "{text} It was {mask}.", see the module
    label_words: tuple[LabelWords, ...]  # one entry for each label
    # "single_token": each label word is one token, as in PET and LM-BFF; "averaged_tokens": a word
    # may have several, and its score is the mean of their logits.
    tokens_of_words: Literal["single_token", "averaged_tokens"] = "single_token"
    demonstrations: Demonstrations | None = None  # solved examples after the input; None: none

    def __post_init__(self) -> None:
        parse_template(self.template)
        labels = [each.label for each in self.label_words]
        if len(labels) < 2 or len(set(labels)) < len(labels):
            raise ConfigError(
                f"prompt.label_words has the labels {labels}; expected at least two different "
                "labels"
            )

    def words_of(self, labels: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """Returns the label words in the order of the labels of a task.

        Raises:
          ConfigError: the prompt has other labels than the task.
        """
        words = {each.label: each.words for each in self.label_words}
        for label in words:
            if label not in labels:
                raise ConfigError(
                    f"prompt.label_words has the label {label!r}; {did_you_mean(label, labels)}"
                    f"the labels of the task are {', '.join(labels)}"
                )
        missing = [label for label in labels if label not in words]
        if missing:
            raise ConfigError(
                f"prompt.label_words has no words for the label {missing[0]!r}; expected words for "
                f"each of {', '.join(labels)}"
            )
        return tuple(words[label] for label in labels)


def parse_template(template: str) -> Segments:
    """Parses a template into the parts of its one or two segments.

    Raises:
      ConfigError: a field or modifier is unknown, a brace is not closed, a field occurs twice, or
        there is no mask, no text, or an empty segment.
    """
    segments: list[list[Part]] = [[]]
    counts: dict[str, int] = dict.fromkeys(_FIELD_NAMES, 0)
    for match in _TOKEN.finditer(template):
        token, field = match.group(), match.group(1)
        if field is not None:
            name, *modifiers = field.split("|")
            _check_field(template, name, modifiers)
            counts[name] += 1
            if name == "sep":
                segments.append([])
            else:
                part = MaskPart() if name == "mask" else _text_part(name, modifiers)
                segments[-1].append(part)
        elif token in ("{", "}"):
            raise ConfigError(
                f"template {template!r}: the brace {token!r} at character {match.start()} has no "
                f"partner; write {token * 2} for a literal brace"
            )
        else:
            _add_literal(segments[-1], token[0] if token in ("{{", "}}") else token)
    _check_counts(template, counts)
    if not all(segments):
        raise ConfigError(
            f"template {template!r}: there is nothing on one side of {{sep}}; expected text, a "
            "field or the mask on both"
        )
    return tuple(tuple(segment) for segment in segments)


def text_names(segments: Segments) -> set[TextName]:
    """Returns which texts of an example a template reads."""
    return {part.name for segment in segments for part in segment if isinstance(part, TextPart)}


def _text_part(name: str, modifiers: list[str]) -> TextPart:
    return TextPart("text" if name == "text" else "text_pair", tuple(modifiers))


def _add_literal(segment: list[Part], text: str) -> None:
    """Appends literal text, joined with literal text before it ("{{" is matched on its own)."""
    match segment:
        case [*_, LiteralPart(text=before)]:
            segment[-1] = LiteralPart(before + text)
        case _:
            segment.append(LiteralPart(text))


def _check_field(template: str, name: str, modifiers: list[str]) -> None:
    if name not in _FIELD_NAMES:
        raise ConfigError(
            f"template {template!r}: unknown field {{{name}}}; {did_you_mean(name, _FIELD_NAMES)}"
            f"the fields are {', '.join(f'{{{known}}}' for known in _FIELD_NAMES)}"
        )
    if modifiers and name not in _TEXT_NAMES:
        raise ConfigError(
            f"template {template!r}: {{{name}}} has the modifier {modifiers[0]!r}; only {{text}} "
            "and {text_pair} have modifiers"
        )
    for modifier in modifiers:
        if modifier not in _MODIFIERS:
            raise ConfigError(
                f"template {template!r}: unknown modifier {modifier!r} of {{{name}}}; "
                f"{did_you_mean(modifier, _MODIFIERS)}the modifiers are {', '.join(_MODIFIERS)}"
            )


def _check_counts(template: str, counts: dict[str, int]) -> None:
    if counts["mask"] != 1:
        raise ConfigError(
            f"template {template!r} has {counts['mask'] or 'no'} "
            f"mask{'s' if counts['mask'] > 1 else ''}; expected {{mask}} exactly once"
        )
    for name in ("text", "text_pair", "sep"):
        if counts[name] > 1:
            raise ConfigError(
                f"template {template!r} has {{{name}}} {counts[name]} times; expected it at most "
                "once"
            )
    if not counts["text"] and not counts["text_pair"]:
        raise ConfigError(
            f"template {template!r} has no text of the example; add {{text}} or {{text_pair}}"
        )


# LM-BFF's `*sent-_0*` removes the last character, whatever it is.
def _without_punctuation(text: str) -> str:
    # White space first: GLUE's texts often end in " ."
    return text.rstrip().rstrip(string.punctuation).rstrip()


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


_MODIFIERS: dict[str, Callable[[str], str]] = {
    "no_punctuation": _without_punctuation,
    "lower_first": _lower_first,
}
