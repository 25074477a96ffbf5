"""What every metric refuses: nothing to measure, rows that do not pair up, numbers that are not."""

import numpy as np

from bert_jax.errors import UserError


def require_matching_counts(description: str, num_references: int, num_predictions: int) -> None:
    """Refuses empty input and unequal numbers of rows.

    Raises:
      UserError: there are no rows.
      ValueError: `gold` and `predicted` differ, which is the caller's mistake, not the user's.
    """
    if num_references != num_predictions:
        raise ValueError(f"{description} do not pair up: {num_references} and {num_predictions}")
    if num_references == 0:
        raise UserError(f"no {description} with labels, so there is nothing to measure")


def require_finite(description: str, values: np.ndarray, *, allow_infinite: bool = False) -> None:
    """Refuses NaN, and infinities unless `infinite`, in an array of any shape.

    Raises:
      UserError: naming the first one by its index, rows counted from 0.
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
    """Refuses class numbers outside of [0, classes); `names` describes the classes in the message.

    Raises:
      UserError: naming the first such row, counted from 0.
    """
    invalid = (labels < 0) | (labels >= num_classes)
    if invalid.any():
        first_index = int(np.argmax(invalid))
        raise UserError(
            f"row {first_index} has the class id {labels[first_index]}, but the model chooses "
            f"among {num_classes} ({class_names}): its labels and those of the data differ"
        )
