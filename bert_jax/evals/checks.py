"""What every metric refuses: nothing to measure, rows that do not pair up, numbers that are not."""

import numpy as np

from bert_jax.errors import UserError


def require_rows(what: str, gold: int, predicted: int) -> None:
    """Refuses empty input and unequal numbers of rows.

    Raises:
      UserError: there are no rows.
      ValueError: `gold` and `predicted` differ, which is the caller's mistake, not the user's.
    """
    if gold != predicted:
        raise ValueError(f"{what} do not pair up: {gold} and {predicted}")
    if gold == 0:
        raise UserError(f"no {what} with gold labels, so there is nothing to measure")


def require_numbers(what: str, values: np.ndarray, *, infinite: bool = False) -> None:
    """Refuses NaN, and infinities unless `infinite`, in an array of any shape.

    Raises:
      UserError: naming the first one by its index, rows counted from 0.
    """
    bad = np.isnan(values) if infinite else ~np.isfinite(values)
    if bad.any():
        place = np.argwhere(bad)[0].tolist()
        raise UserError(
            f"{what} hold {values[bad][0]}, first at {', '.join(map(str, place))}; expected finite "
            "numbers. If a model made them its training diverged: look at its loss, and try a "
            "smaller learning rate"
        )


def require_labels(labels: np.ndarray, classes: int, names: str) -> None:
    """Refuses class numbers outside of [0, classes); `names` describes the classes in the message.

    Raises:
      UserError: naming the first such row, counted from 0.
    """
    bad = (labels < 0) | (labels >= classes)
    if bad.any():
        row = int(np.argmax(bad))
        raise UserError(
            f"row {row} has the label number {labels[row]}, but the model chooses among {classes} "
            f"({names}): its labels and those of the data differ"
        )
