"""Tokenizes prompts: the token ids of examples in a template, and the tokens of the label words.

Each part of a template is tokenized on its own, as in LM-BFF, so that cutting a text at its end
never changes the tokens of the template. A space before a text or a label word belongs to it, which
decides the token in byte-level BPE ("Ġgreat"); a space before the mask is dropped, because the mask
tokens of such vocabularies stand for a word with its space.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.config.prompts import (
    LiteralPart,
    MaskPart,
    Part,
    Prompt,
    Segments,
    TextPart,
    parse_template,
    text_names,
)
from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.finetuning.features import Features, longest_first_lengths
from bert_jax.errors import ConfigError, UserError
from bert_jax.models.heads.config import LabelTokens
from bert_jax.text.tokenizer import Tokenizer


def find_label_tokens(prompt: Prompt, labels: tuple[str, ...], tokenizer: Tokenizer) -> LabelTokens:
    """Returns the mask token and the tokens of the label words of each class.

    Raises:
      ConfigError: the prompt has other labels than the task.
      UserError: a label word is unknown to the tokenizer or, unless allowed, more than one token;
        or two labels have a word with the same tokens.
    """
    token_ids, owners = [], dict[tuple[int, ...], str]()
    for label, words in zip(labels, prompt.words_of(labels), strict=True):
        token_ids.append(tuple(_word_ids(word, label, prompt, tokenizer) for word in words))
        for word, ids in zip(words, token_ids[-1], strict=True):
            if ids in owners:
                raise UserError(
                    f"the label word {word!r} of {label!r} has the same tokens as a word of "
                    f"{owners[ids]!r}; expected different words, so that the classes can be told "
                    "apart"
                )
            owners[ids] = label
    return LabelTokens(mask_token_id=tokenizer.mask_id, token_ids=tuple(token_ids))


def _word_ids(word: str, label: str, prompt: Prompt, tokenizer: Tokenizer) -> tuple[int, ...]:
    # With the space of a word in a sentence: byte-level BPE has other tokens for "great" and "
    # great".
    ids = tuple(tokenizer.encode(f" {word.strip()}"))
    tokens = " ".join(map(tokenizer.id_to_token, ids))
    if not ids or tokenizer.unk_id in ids:
        raise UserError(
            f"the label word {word!r} of {label!r} is unknown to the tokenizer of the model "
            f"(tokens: {tokens or 'none'}); choose another word"
        )
    if len(ids) > 1 and prompt.tokens_of_words == "single_token":
        raise UserError(
            f"the label word {word!r} of {label!r} is {len(ids)} tokens for this model: {tokens}; "
            "expected one token: choose another word, or set prompt.tokens_of_words to "
            "averaged_tokens, which averages their logits"
        )
    return ids


def make_prompt_features(
    examples: Sequence[TextExample], prompt: Prompt, tokenizer: Tokenizer, max_length: int
) -> Features:
    """Puts examples into a template as sequences of at most `max_length` tokens, without targets.

    Only the texts are truncated, at their ends and the longest first; the template and the mask are
    always complete. A mask token that is written in a text becomes the unknown token, so each
    sequence has one mask.

    Raises:
      UserError: an example is a pair of texts and the template has no {text_pair}, or the reverse.
      ConfigError: the template leaves no room for text in `max_length` tokens.
    """
    segments = parse_template(prompt.template)
    check_texts(examples, segments, prompt.template)
    mask = np.array([tokenizer.mask_id], np.int32)
    encoded = encode_template(segments, examples, tokenizer, mask)
    special = tokenizer.template
    num_fixed = sum(part.num_fixed for segment in encoded for part in segment) + (
        special.num_pair_special_tokens if len(encoded) == 2 else special.num_single_special_tokens
    )
    num_texts = sum(part.is_text for segment in encoded for part in segment)
    if max_length < num_fixed + num_texts:
        raise ConfigError(
            f"sequences of {max_length} tokens leave no room for text: the template "
            f"{prompt.template!r} has {num_fixed} tokens of its own with the mask and the special "
            "tokens; expected a larger max_length or a shorter template"
        )
    features = Features(example_index=np.arange(len(examples)))
    for index in range(len(examples)):
        rows, is_truncated = _cut_texts(encoded, index, max_length - num_fixed)
        second = rows[1] if len(rows) == 2 else None
        features.input_ids.append(tokenizer.build_inputs_with_special_tokens(rows[0], second))
        features.token_type_ids.append(
            special.token_type_ids(len(rows[0]), None if second is None else len(second))
        )
        features.num_truncated += is_truncated
    return features


@dataclass(frozen=True, kw_only=True)
class EncodedPart:
    """Holds the token ids of one part of a template: of all examples, or of each one."""

    is_text: bool
    token_ids: list[np.ndarray]  # one array for each example; a part of the template has only one

    @property
    def num_fixed(self) -> int:
        """Returns the number of tokens that are never cut."""
        return 0 if self.is_text else len(self.token_ids[0])


def _spaced(segments: Segments) -> list[list[tuple[str, Part]]]:
    """Returns each part with the space that belongs to its first token: " " or ""."""
    spaced: list[list[tuple[str, Part]]] = []
    for segment in segments:
        parts: list[tuple[str, Part]] = []
        space = ""
        for part in segment:
            if isinstance(part, LiteralPart):
                text = part.text.rstrip()
                if text:
                    parts.append(("", LiteralPart(text)))
                space = " " if len(text) < len(part.text) else ""
            else:
                parts.append((space, part))
                space = ""
        spaced.append(parts)
    return spaced


# Parts are tokenized one by one, as in LM-BFF, so that truncation cuts texts only. The mask is
# found by its id, so a mask token that is written in a text is read as unknown.
def encode_template(
    segments: Segments,
    examples: Sequence[TextExample],
    tokenizer: Tokenizer,
    mask_ids: np.ndarray,
) -> list[list[EncodedPart]]:
    """Tokenizes the parts of each segment, with `mask_ids` at the position of the mask."""
    return [
        [_encode_part(part, examples, tokenizer, mask_ids) for part in segment]
        for segment in _spaced(segments)
    ]


def _encode_part(
    spaced_part: tuple[str, Part],
    examples: Sequence[TextExample],
    tokenizer: Tokenizer,
    mask_ids: np.ndarray,
) -> EncodedPart:
    space, part = spaced_part
    match part:
        case MaskPart():
            return EncodedPart(is_text=False, token_ids=[mask_ids])
        case LiteralPart(text=text):
            return EncodedPart(is_text=False, token_ids=tokenizer.encode_ids([text]))
        case TextPart(name=name):
            texts = [space + part.apply_modifiers(getattr(each, name)) for each in examples]
            token_ids = [
                # The head finds the position to score by the id of the mask token, so there may be
                # only one.
                np.where(ids == tokenizer.mask_id, tokenizer.unk_id, ids).astype(np.int32)
                for ids in tokenizer.encode_ids(texts)
            ]
            return EncodedPart(is_text=True, token_ids=token_ids)


def _cut_texts(
    encoded: list[list[EncodedPart]], index: int, max_text_length: int
) -> tuple[list[np.ndarray], bool]:
    """Returns the token ids of each segment of one example, and whether a text was truncated."""
    texts = [part.token_ids[index] for segment in encoded for part in segment if part.is_text]
    if len(texts) == 2:
        lengths = longest_first_lengths(len(texts[0]), len(texts[1]), max_text_length)
    else:
        lengths = (min(len(texts[0]), max_text_length),)
    cut = iter([text[:length] for text, length in zip(texts, lengths, strict=True)])
    rows = [
        np.concatenate([next(cut) if part.is_text else part.token_ids[0] for part in segment])
        if segment
        else np.zeros(0, np.int32)
        for segment in encoded
    ]
    return rows, sum(lengths) < sum(map(len, texts))


def check_texts(examples: Sequence[TextExample], segments: Segments, template: str) -> None:
    """Raises a UserError unless the examples have the texts that a template reads."""
    reads_pairs = "text_pair" in text_names(segments)
    for example in examples:
        if reads_pairs != (example.text_pair is not None):
            found = "one text" if reads_pairs else "a pair of texts"
            problem = "has {text_pair}" if reads_pairs else "has no {text_pair}"
            raise UserError(
                f"the example {example.id!r} is {found}, but the template {template!r} {problem}; "
                "use a template for such examples"
            )
