"""Reads and writes what heads have in common in Hugging Face's config.json. Imports no jax.

The class name in "architectures" is the kind of head, "id2label" has its labels, and "problem_type"
tells classification, regression and ranking apart.
"""

from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.models.heads.config import LARGEST_NUM_LABELS

REGRESSION, CLASSIFICATION = "regression", "single_label_classification"
MULTI_LABEL_CLASSIFICATION = "multi_label_classification"

_THRESHOLDS = "label_thresholds"
"""Our key of config.json: label -> threshold. transformers keeps keys that it does not know."""


def problem_type_of(data: Mapping[str, Any], labels: tuple[str, ...]) -> Any:
    """Returns the problem type of a sequence classification; by default, its labels decide."""
    return data.get("problem_type") or (REGRESSION if len(labels) == 1 else CLASSIFICATION)


def read_labels(data: Mapping[str, Any], source: str) -> tuple[str, ...]:
    """Returns the labels by class number; LABEL_0, LABEL_1, ... if the file has none.

    Raises:
      UserError: "num_labels" or "id2label" is invalid.
    """
    id2label = data.get("id2label")
    if id2label is None:
        # `PretrainedConfig` of transformers has two labels by default.
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


def describe_labels(data: Mapping[str, Any]) -> str:
    """Describes the number of labels in the words of the file, for messages."""
    id2label = data.get("id2label")
    if id2label is None:
        return f"num_labels is {data.get('num_labels', 2)}"
    return f"id2label has {len(id2label)} labels"


def label_maps(labels: tuple[str, ...]) -> dict[str, Any]:
    """Returns the fields of config.json for labels in the order of their classes."""
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }


def threshold_map(labels: tuple[str, ...], thresholds: tuple[float, ...]) -> dict[str, Any]:
    """Returns the field of config.json for thresholds; none if there are no thresholds."""
    return {_THRESHOLDS: dict(zip(labels, thresholds, strict=True))} if thresholds else {}


def read_thresholds(
    data: Mapping[str, Any], labels: tuple[str, ...], source: str
) -> tuple[float, ...]:
    """Returns the threshold of each label; () if the file has none.

    Raises:
      UserError: they are not a number for each label.
    """
    found = data.get(_THRESHOLDS)
    if found is None:
        return ()
    if not isinstance(found, Mapping) or set(found) != set(labels):
        raise UserError(
            f"{source}: {_THRESHOLDS} is {found!r}; expected a threshold for each of the labels "
            f"{', '.join(labels)}, or no {_THRESHOLDS}"
        )
    for label, threshold in found.items():
        if isinstance(threshold, bool) or not isinstance(threshold, int | float):
            raise UserError(
                f"{source}: {_THRESHOLDS} has {threshold!r} for the label {label!r}; expected a "
                "probability from 0 to 1"
            )
    return tuple(float(found[label]) for label in labels)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]} ..."
