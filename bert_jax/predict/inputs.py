"""What may be predicted on: texts, pairs and the like, or the examples that readers make."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.data.finetuning.example import (
    ChoiceExample,
    Example,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from bert_jax.data.finetuning.task import TaskKind
from bert_jax.errors import UserError
from bert_jax.models.config import (
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RegressionHead,
    SequenceClassificationHead,
    TaskHead,
    TokenClassificationHead,
)
from bert_jax.text.word_offsets import word_offsets

Input = str | Sequence[str] | Example
"""By the kind of task:

classification, regression   a text, or two in a tuple, or a `TextExample`
tagging                      a text, or a tuple of its words, or a `TextExample`, `TaggedExample`
question_answering           (question, context), or a `QuestionExample`
multiple_choice              (context, choice, choice, ...), or a `ChoiceExample`

Labels of examples are not looked at.
"""

TEXT_KINDS: tuple[TaskKind, ...] = ("classification", "regression")
_EXPECTED_INPUT: dict[TaskKind, str] = {
    "classification": "a text or a pair of texts",
    "regression": "a text or a pair of texts",
    "token_classification": "one text, or its words",
    "question_answering": "a question and a context",
    "multiple_choice": "a context and two choices or more",
}


def task_kind(head: TaskHead) -> TaskKind:
    """The kind of task that a head is for."""
    match head:
        case SequenceClassificationHead():
            return "classification"
        case RegressionHead():
            return "regression"
        case TokenClassificationHead():
            return "token_classification"
        case QuestionAnsweringHead():
            return "question_answering"
        case MultipleChoiceHead():
            return "multiple_choice"


def to_example(model_input: Input, index: int, kind: TaskKind) -> Example:
    """The unlabelled example that is meant; `number` names what has no id.

    Raises:
      UserError: a text in it is empty, or it is not what this kind of task reads.
    """
    name = str(index)
    match kind, model_input:
        case "classification" | "regression", str() as text:
            example: Example = TextExample(id=name, text=text)
        case "classification" | "regression", [str() as text, str() as pair]:
            example = TextExample(id=name, text=text, text_pair=pair)
        case "classification" | "regression", TextExample():
            example = dataclasses.replace(model_input, label=None)
        case "token_classification", str() as text:
            example = TaggedExample(id=name, words=split_words(text))
        case "token_classification", TextExample(text_pair=None):
            example = TaggedExample(id=model_input.id, words=split_words(model_input.text))
        case "token_classification", TaggedExample():
            example = dataclasses.replace(model_input, tags=None)
        case "token_classification", [*words]:
            example = TaggedExample(id=name, words=tuple(words))
        case "question_answering", [str() as question, str() as context]:
            example = QuestionExample(id=name, question=question, context=context)
        case "question_answering", QuestionExample():
            example = dataclasses.replace(model_input, answers=(), is_impossible=False)
        case "multiple_choice", [str() as context, *choices] if len(choices) > 1:
            example = ChoiceExample(id=name, context=context, choices=tuple(choices))
        case "multiple_choice", ChoiceExample():
            example = dataclasses.replace(model_input, label=None)
        case _:
            raise UserError(
                f"{_shorten(model_input)}: a model for {kind} reads {_EXPECTED_INPUT[kind]}"
            )
    _check_not_empty(example, model_input)
    return example


def split_words(text: str) -> tuple[str, ...]:
    """The words of a text, as `word_offsets` finds them."""
    return tuple(text[start:end] for start, end in word_offsets([text])[0])


def format_prediction(
    model_input: Input, kind: TaskKind, prediction: Mapping[str, Any]
) -> dict[str, Any]:
    """A prediction with what it is for: the texts that were given, or the id of an example.

    Args:
      row: one of `verdicts.predictions`; in an untagged text's, the entities then get characters
        [start, end) of the text in place of words.
    """
    result = {key: value for key, value in prediction.items() if key != "id"}
    if kind == "token_classification" and isinstance(model_input, (str, TextExample)):
        text = model_input if isinstance(model_input, str) else model_input.text
        offsets = word_offsets([text])[0]
        result["entities"] = [
            _to_character_offsets(e, text, offsets) for e in prediction["entities"]
        ]
        result["words"] = [text[start:end] for start, end in offsets]
    match model_input:
        case str():
            return {"text": model_input, **result}
        case TextExample() | TaggedExample() | QuestionExample() | ChoiceExample():
            return {"id": model_input.id, **result}
    match kind:
        case "token_classification":
            return {"words": list(model_input), **result}
        case "question_answering":
            return {"question": model_input[0], "context": model_input[1], **result}
        case "multiple_choice":
            return {"context": model_input[0], "choices": list(model_input[1:]), **result}
        case _:
            return {"text": model_input[0], "text_pair": model_input[1], **result}


def _to_character_offsets(
    entity: Mapping[str, Any], text: str, offsets: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    start, end = offsets[entity["start"]][0], offsets[entity["end"] - 1][1]
    return {**entity, "start": start, "end": end, "text": text[start:end]}


def _check_not_empty(example: Example, model_input: Input) -> None:
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
        raise UserError(
            f"{_shorten(model_input)}: a text is empty; expected something to predict on"
        )


def _shorten(model_input: Input) -> str:
    text = repr(model_input)
    return text if len(text) <= 100 else f"{text[:97]}..."
