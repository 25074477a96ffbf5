"""What may be predicted on: texts, pairs and the like, or the examples that readers make."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.data.labelled.example import (
    ChoiceExample,
    Example,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from bert_jax.data.labelled.task import Kind
from bert_jax.errors import UserError
from bert_jax.models.config import (
    ChoiceHead,
    RegressionHead,
    SequenceHead,
    SpanHead,
    TaskHead,
    TokenHead,
)
from bert_jax.text.words import word_offsets

Input = str | Sequence[str] | Example
"""By the kind of task:

classification, regression   a text, or two in a tuple, or a `TextExample`
tagging                      a text, or a tuple of its words, or a `TextExample`, `TaggedExample`
question_answering           (question, context), or a `QuestionExample`
multiple_choice              (context, choice, choice, ...), or a `ChoiceExample`

Labels of examples are not looked at.
"""

TEXT_KINDS: tuple[Kind, ...] = ("classification", "regression")
_READS: dict[Kind, str] = {
    "classification": "a text or a pair of texts",
    "regression": "a text or a pair of texts",
    "tagging": "one text, or its words",
    "question_answering": "a question and a context",
    "multiple_choice": "a context and two choices or more",
}


def kind_of(head: TaskHead) -> Kind:
    """The kind of task that a head is for."""
    match head:
        case SequenceHead():
            return "classification"
        case RegressionHead():
            return "regression"
        case TokenHead():
            return "tagging"
        case SpanHead():
            return "question_answering"
        case ChoiceHead():
            return "multiple_choice"


def to_example(given: Input, number: int, kind: Kind) -> Example:
    """The unlabelled example that is meant; `number` names what has no id.

    Raises:
      UserError: a text in it is empty, or it is not what this kind of task reads.
    """
    name = str(number)
    match kind, given:
        case "classification" | "regression", str() as text:
            example: Example = TextExample(id=name, text=text)
        case "classification" | "regression", [str() as text, str() as pair]:
            example = TextExample(id=name, text=text, text_pair=pair)
        case "classification" | "regression", TextExample():
            example = dataclasses.replace(given, label=None)
        case "tagging", str() as text:
            example = TaggedExample(id=name, words=words_of(text))
        case "tagging", TextExample(text_pair=None):
            example = TaggedExample(id=given.id, words=words_of(given.text))
        case "tagging", TaggedExample():
            example = dataclasses.replace(given, tags=None)
        case "tagging", [*words]:
            example = TaggedExample(id=name, words=tuple(words))
        case "question_answering", [str() as question, str() as context]:
            example = QuestionExample(id=name, question=question, context=context)
        case "question_answering", QuestionExample():
            example = dataclasses.replace(given, answers=(), is_impossible=False)
        case "multiple_choice", [str() as context, *choices] if len(choices) > 1:
            example = ChoiceExample(id=name, context=context, choices=tuple(choices))
        case "multiple_choice", ChoiceExample():
            example = dataclasses.replace(given, label=None)
        case _:
            raise UserError(f"{_short(given)}: a model for {kind} reads {_READS[kind]}")
    _refuse_empty(example, given)
    return example


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text, as `word_offsets` finds them."""
    return tuple(text[start:end] for start, end in word_offsets([text])[0])


def described(given: Input, kind: Kind, row: Mapping[str, Any]) -> dict[str, Any]:
    """A prediction with what it is for: the texts that were given, or the id of an example.

    Args:
      row: one of `verdicts.predictions`; in an untagged text's, the entities then get characters
        [start, end) of the text in place of words.
    """
    said = {key: value for key, value in row.items() if key != "id"}
    if kind == "tagging" and isinstance(given, (str, TextExample)):
        text = given if isinstance(given, str) else given.text
        places = word_offsets([text])[0]
        said["entities"] = [_in_characters(e, text, places) for e in row["entities"]]
        said["words"] = [text[start:end] for start, end in places]
    match given:
        case str():
            return {"text": given, **said}
        case TextExample() | TaggedExample() | QuestionExample() | ChoiceExample():
            return {"id": given.id, **said}
    match kind:
        case "tagging":
            return {"words": list(given), **said}
        case "question_answering":
            return {"question": given[0], "context": given[1], **said}
        case "multiple_choice":
            return {"context": given[0], "choices": list(given[1:]), **said}
        case _:
            return {"text": given[0], "text_pair": given[1], **said}


def _in_characters(
    entity: Mapping[str, Any], text: str, places: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    start, end = places[entity["start"]][0], places[entity["end"] - 1][1]
    return {**entity, "start": start, "end": end, "text": text[start:end]}


def _refuse_empty(example: Example, given: Input) -> None:
    match example:
        case TextExample():
            texts = [example.text] + ([] if example.text_pair is None else [example.text_pair])
        case TaggedExample():
            texts = list(example.words) or [""]
        case QuestionExample():
            texts = [example.question, example.context]
        case ChoiceExample():
            texts = [example.context, *example.choices]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise UserError(f"{_short(given)}: a text is empty; expected something to predict on")


def _short(given: Input) -> str:
    shown = repr(given)
    return shown if len(shown) <= 100 else f"{shown[:97]}..."
