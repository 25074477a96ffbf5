"""Task heads as Hugging Face's `config.json` tells of them, both ways. No jax here.

The class in "architectures" says the kind, "id2label" the labels, and "problem_type" whether a
sequence head classifies or is a regression.
"""

from collections.abc import Callable, Mapping
from typing import Any

from bert_jax.errors import ConfigError, UserError
from bert_jax.models.config import (
    ChoiceHead,
    RegressionHead,
    SequenceHead,
    SpanHead,
    TaskHead,
    TokenHead,
)

SEQUENCE = "BertForSequenceClassification"
TOKEN = "BertForTokenClassification"
SPAN = "BertForQuestionAnswering"
CHOICE = "BertForMultipleChoice"
ARCHITECTURES = (SEQUENCE, TOKEN, SPAN, CHOICE)
"""Their classes with a task's head."""

_REGRESSION, _CLASSIFICATION = "regression", "single_label_classification"


def head_from(data: Mapping[str, Any], source: str) -> TaskHead | None:
    """The head that the content of a `config.json` describes; None for a class without one.

    Args:
      source: the file, for messages.

    Raises:
      UserError: labels or a problem type that no head here has; names the field.
    """
    named = [name for name in data.get("architectures") or () if name in ARCHITECTURES]
    if not named:
        return None
    try:
        return _READERS[named[0]](data, source)
    except ConfigError as error:
        raise UserError(f"{source}: {error}") from None


def _span_head(data: Mapping[str, Any], source: str) -> SpanHead:
    if (count := len(_labels(data, source))) != 2:
        raise UserError(f"{source}: a {SPAN} with {count} labels; expected 2, start and end")
    return SpanHead()


def _sequence_head(data: Mapping[str, Any], source: str) -> SequenceHead | RegressionHead:
    labels = _labels(data, source)
    problem = data.get("problem_type") or (_REGRESSION if len(labels) == 1 else _CLASSIFICATION)
    if problem == _CLASSIFICATION:
        return SequenceHead(labels=labels)
    if problem != _REGRESSION:
        raise UserError(
            f"{source}: problem_type is {problem!r}; supported are {_CLASSIFICATION!r} and "
            f"{_REGRESSION!r}"
        )
    if len(labels) != 1:
        raise UserError(f"{source}: a regression with {len(labels)} labels; expected one")
    return RegressionHead()


def _labels(data: Mapping[str, Any], source: str) -> tuple[str, ...]:
    """The labels in the order of their numbers; theirs are LABEL_0 .. where a file has none."""
    given = data.get("id2label")
    if given is None:
        count = data.get("num_labels", 2)
        if not isinstance(count, int):
            raise UserError(f"{source}: num_labels is {count!r}; expected a number")
        return tuple(f"LABEL_{index}" for index in range(count))
    numbers = {str(index) for index in range(len(given))}
    if not isinstance(given, Mapping) or set(given) != numbers:
        raise UserError(
            f"{source}: id2label is {given!r}; expected a label for each of the numbers 0, 1, .."
        )
    labels = tuple(given[str(index)] for index in range(len(given)))
    if not all(isinstance(label, str) for label in labels):
        raise UserError(f"{source}: id2label is {given!r}; expected text for every label")
    return labels


_READERS: dict[str, Callable[[Mapping[str, Any], str], TaskHead]] = {
    SEQUENCE: _sequence_head,
    TOKEN: lambda data, source: TokenHead(labels=_labels(data, source)),
    SPAN: _span_head,
    CHOICE: lambda data, source: ChoiceHead(),
}


def architecture_of_head(head: TaskHead) -> str:
    """Their class for a head."""
    match head:
        case SequenceHead() | RegressionHead():
            return SEQUENCE
        case TokenHead():
            return TOKEN
        case SpanHead():
            return SPAN
        case ChoiceHead():
            return CHOICE


def to_fields(head: TaskHead) -> dict[str, Any]:
    """What `config.json` says of a head, beside the architecture; the inverse of `head_from`."""
    match head:
        case SequenceHead():
            return {**_numbered(head.labels), "problem_type": _CLASSIFICATION}
        case RegressionHead():
            return {**_numbered(("LABEL_0",)), "problem_type": _REGRESSION}
        case TokenHead():
            return _numbered(head.labels)
        case SpanHead() | ChoiceHead():
            return {}


def _numbered(labels: tuple[str, ...]) -> dict[str, Any]:
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
