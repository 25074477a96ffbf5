"""Reads and writes the task head in Hugging Face's config.json. Imports no jax.

The class name in "architectures" is the kind of head, "id2label" has its labels, and "problem_type"
tells classification, regression and ranking apart. Cross-encoders of sentence-transformers also
have the name of the activation of their score.
"""

from collections.abc import Callable, Mapping
from typing import Any

from bert_jax.errors import ConfigError, UserError
from bert_jax.models.heads.config import (
    LARGEST_NUM_LABELS,
    Identity,
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RankingHead,
    RegressionHead,
    SequenceClassificationHead,
    Sigmoid,
    TaskHead,
    TokenClassificationHead,
)

SEQUENCE_CLASSIFICATION = "ForSequenceClassification"
TOKEN_CLASSIFICATION = "ForTokenClassification"
QUESTION_ANSWERING = "ForQuestionAnswering"
MULTIPLE_CHOICE = "ForMultipleChoice"
CLASS_SUFFIXES = (
    SEQUENCE_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    QUESTION_ANSWERING,
    MULTIPLE_CHOICE,
)
"""The ends of the names of Hugging Face's classes with a task head, as in BertFor..."""

_REGRESSION, _CLASSIFICATION = "regression", "single_label_classification"
# With one label, Hugging Face's loss is the binary cross-entropy that a `RankingHead` has.
_RANKING = "multi_label_classification"

_ACTIVATIONS = {
    "torch.nn.modules.activation.Sigmoid": Sigmoid(),
    "torch.nn.modules.linear.Identity": Identity(),
}
"""Name of a PyTorch class in a cross-encoder's config.json -> activation of the score."""


def head_from_config(suffix: str, data: Mapping[str, Any], source: str) -> TaskHead:
    """Reads the head of a class from the content of its `config.json`.

    Args:
      suffix: the end of the class name, out of `CLASS_SUFFIXES`.
      source: the file, for messages.

    Raises:
      UserError: labels or a problem type that is not supported; names the field.
    """
    try:
        return _HEAD_READERS[suffix](data, source)
    except ConfigError as error:
        raise UserError(f"{source}: {error}") from None


def _question_answering_head(data: Mapping[str, Any], source: str) -> QuestionAnsweringHead:
    if len(_read_labels(data, source)) != 2:
        raise UserError(
            f"{source}: {_describe_labels(data)}, but the architecture is question answering; "
            "expected 2, for start and end"
        )
    return QuestionAnsweringHead()


def _sequence_classification_head(
    data: Mapping[str, Any], source: str
) -> SequenceClassificationHead | RegressionHead | RankingHead:
    labels = _read_labels(data, source)
    activation = _cross_encoder_activation(data, source)
    if len(labels) == 1 and (activation or data.get("problem_type") == _RANKING):
        return RankingHead(activation=activation or Sigmoid())
    problem_type = data.get("problem_type") or (
        _REGRESSION if len(labels) == 1 else _CLASSIFICATION
    )
    if problem_type == _CLASSIFICATION:
        return SequenceClassificationHead(labels=labels)
    if problem_type != _REGRESSION:
        raise UserError(
            f"{source}: problem_type is {problem_type!r}; supported are {_CLASSIFICATION!r} and "
            f"{_REGRESSION!r}"
        )
    if len(labels) != 1:
        raise UserError(
            f"{source}: problem_type is {_REGRESSION!r}, but {_describe_labels(data)}; expected 1 "
            f"(multi-output regression is not supported), or problem_type {_CLASSIFICATION!r}"
        )
    return RegressionHead()


def _cross_encoder_activation(data: Mapping[str, Any], source: str) -> Sigmoid | Identity | None:
    """Returns the activation that sentence-transformers writes; None if the file has none.

    Raises:
      UserError: it is not one of the two that are supported.
    """
    section = data.get("sentence_transformers")
    field, name = "sentence_transformers.activation_fn", None
    if isinstance(section, Mapping):
        name = section.get("activation_fn")
    if name is None:  # how versions before 4 wrote it
        field = "sbert_ce_default_activation_function"
        name = data.get(field)
    if name is None:
        return None
    if name not in _ACTIVATIONS:
        code = "" if str(name).startswith("torch.") else ", code that is not part of PyTorch"
        raise UserError(
            f"{source}: {field} is {name!r}{code}; supported are {' and '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def _read_labels(data: Mapping[str, Any], source: str) -> tuple[str, ...]:
    """Returns the labels by class number; LABEL_0, LABEL_1, ... if the file has none."""
    id2label = data.get("id2label")
    if id2label is None:
        count = data.get("num_labels", 2)
        if type(count) is not int or not 0 < count <= LARGEST_NUM_LABELS:
            raise UserError(
                f"{source}: num_labels is {count!r}; expected an integer from 1 to "
                f"{LARGEST_NUM_LABELS:,}"
            )
        return tuple(f"LABEL_{index}" for index in range(count))
    if not isinstance(id2label, Mapping) or any(
        str(index) not in id2label for index in range(len(id2label))
    ):
        raise UserError(
            f"{source}: id2label is {_shorten(id2label)}; expected a label for each number "
            "0, 1, ..."
        )
    labels = tuple(id2label[str(index)] for index in range(len(id2label)))
    if not all(isinstance(label, str) for label in labels):
        raise UserError(f"{source}: id2label is {_shorten(id2label)}; expected strings")
    return labels


def _describe_labels(data: Mapping[str, Any]) -> str:
    id2label = data.get("id2label")
    if id2label is None:
        return f"num_labels is {data.get('num_labels', 2)}"
    return f"id2label has {len(id2label)} labels"


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]} ..."


_HEAD_READERS: dict[str, Callable[[Mapping[str, Any], str], TaskHead]] = {
    SEQUENCE_CLASSIFICATION: _sequence_classification_head,
    TOKEN_CLASSIFICATION: lambda data, source: TokenClassificationHead(
        labels=_read_labels(data, source)
    ),
    QUESTION_ANSWERING: _question_answering_head,
    MULTIPLE_CHOICE: lambda data, source: MultipleChoiceHead(),
}


def class_suffix(head: TaskHead) -> str:
    """Returns the end of the name of Hugging Face's class for a head."""
    match head:
        case SequenceClassificationHead() | RegressionHead() | RankingHead():
            return SEQUENCE_CLASSIFICATION
        case TokenClassificationHead():
            return TOKEN_CLASSIFICATION
        case QuestionAnsweringHead():
            return QUESTION_ANSWERING
        case MultipleChoiceHead():
            return MULTIPLE_CHOICE


def head_to_config(head: TaskHead) -> dict[str, Any]:
    """Returns the fields of `config.json` for a head; the inverse of `head_from_config`."""
    match head:
        case SequenceClassificationHead():
            return {**_label_maps(head.labels), "problem_type": _CLASSIFICATION}
        case RegressionHead():
            return {**_label_maps(("LABEL_0",)), "problem_type": _REGRESSION}
        case RankingHead():
            names = {activation: name for name, activation in _ACTIVATIONS.items()}
            return {
                **_label_maps(("LABEL_0",)),
                "problem_type": _RANKING,
                "sentence_transformers": {"activation_fn": names[head.activation]},
                # The same for versions before 4.
                "sbert_ce_default_activation_function": names[head.activation],
            }
        case TokenClassificationHead():
            return _label_maps(head.labels)
        case QuestionAnsweringHead() | MultipleChoiceHead():
            return {}


def _label_maps(labels: tuple[str, ...]) -> dict[str, Any]:
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
