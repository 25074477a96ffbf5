"""Validates inputs of metrics: matching counts, finite numbers, valid class ids."""

import numpy as np

from bert_jax.errors import UserError


def require_matching_counts(description: str, num_references: int, num_predictions: int) -> None:
    """Refuses empty input and unequal numbers of references and predictions.

    Raises:
      UserError: there are no examples.
      ValueError: the numbers differ, which is a mistake of the caller, not of the user.
    """
    if num_references != num_predictions:
        raise ValueError(f"{description} do not pair up: {num_references} and {num_predictions}")
    if num_references == 0:
        raise UserError(f"no {description} with labels, so there is nothing to measure")


def require_finite(description: str, values: np.ndarray, *, allow_infinite: bool = False) -> None:
    """Refuses NaN, and infinities unless `allow_infinite`, in an array of any shape.

    Raises:
      UserError: there is such a number; the message has its index.
    """
    invalid = np.isnan(values) if allow_infinite else ~np.isfinite(values)
    if invalid.any():
        first_index = np.argwhere(invalid)[0].tolist()
        raise UserError(
            f"{description} hold {values[invalid][0]}, first at "
            f"{', '.join(map(str, first_index))}; expected finite numbers. If a model made them "
            "its training diverged: look at its loss, and try a smaller learning rate"
        )


def require_valid_class_ids(labels: np.ndarray, num_classes: int, class_names: str) -> None:
    """Refuses class ids outside of [0, num_classes).

    Args:
      class_names: describes the classes in the message.

    Raises:
      UserError: there is such a class id; the message has the index of the first example with one.
    """
    invalid = (labels < 0) | (labels >= num_classes)
    if invalid.any():
        first_index = int(np.argmax(invalid))
        raise UserError(
            f"row {first_index} has the class id {labels[first_index]}, but the model chooses "
            f"among {num_classes} ({class_names}): its labels and those of the data differ"
        )
