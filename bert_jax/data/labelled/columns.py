"""Texts of one's own, from a table by the names of its columns."""

import difflib
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from bert_jax.data.labelled.config import Columns
from bert_jax.data.labelled.example import TextExample
from bert_jax.data.labelled.tables import Row, Table, read_table
from bert_jax.data.labelled.task import Task
from bert_jax.errors import UserError

METRICS = {"classification": ("accuracy", "f1_macro"), "regression": ("pearson", "spearman")}


class _Labels(NamedTuple):
    kind: Literal["classification", "regression"]
    names: tuple[str, ...]


def read_columns(config: Columns) -> Task:
    """The task in one's own files.

    Classes are those of train (without train, of dev or test): whole numbers in their order, names
    in alphabetical order. Rows of train and dev without a label are left out, with a note; rows of
    test keep their place, labelled or not.

    Raises:
      UserError: a column that does not exist (the nearest is named); an empty text; a label that
        train lacks, or with decimals where classes are expected; an id that occurs twice.
    """
    paths = {"train": config.train, "dev": config.dev, "test": config.test}
    notes: list[str] = []
    rows = {
        split: _labelled_rows(split, read_table(path), path, config, notes)
        for split, path in paths.items()
        if path is not None
    }
    labels = _discover(rows, config)
    return Task(
        name="columns",
        kind=labels.kind,
        labels=labels.names,
        metrics=METRICS[labels.kind],
        splits={split: _examples(found, labels, config) for split, found in rows.items()},
        notes=tuple(notes),
    )


def require_columns(table: Table, path: str, names: Sequence[str | None]) -> None:
    """UserError unless the table has all columns of these names; None names nothing."""
    for name in names:
        if name is not None and name not in table.columns:
            near = difflib.get_close_matches(name, table.columns, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UserError(
                f"{path}: no column {name!r}; {hint}columns here: {', '.join(table.columns)}"
            )


def _labelled_rows(
    split: str, table: Table, path: str, config: Columns, notes: list[str]
) -> list[Row]:
    """All rows of a test set; of train and dev those that have a label."""
    label = config.label
    if split == "test" and label not in table.columns:
        label = None
    require_columns(table, path, [config.text, config.text_pair, label, config.id])
    if not table.rows:
        raise UserError(f"{path}: no rows; expected at least one")
    if split == "test" or label is None:
        return table.rows
    labelled = [row for row in table.rows if _label(row, label) is not None]
    if not labelled:
        raise UserError(f"{path}: no row has anything in the column {label!r}")
    if missing := len(table.rows) - len(labelled):
        notes.append(f"{path}: {missing:,} rows without a label were left out.")
    return labelled


def _label(row: Row, column: str | None) -> str | int | float | None:
    """The cell of the label as text or number; None where there is none."""
    value: Any = None if column is None else row.cells.get(column)
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isnan(value):  # how pandas writes a missing number
        return None
    if value is None or isinstance(value, (int, float)):
        return value
    raise UserError(
        f"{row.place}: the label is a {type(value).__name__}; expected a name or a number"
    )


def _discover(rows: dict[str, list[Row]], config: Columns) -> _Labels:
    """Kind and classes, from the first of train, dev and test that has labels."""
    for found in rows.values():
        labelled = [
            (row, label) for row in found if (label := _label(row, config.label)) is not None
        ]
        if labelled:
            break
    else:
        return _Labels(config.kind or "classification", ())
    numbers = [_number(label) for _, label in labelled]
    decimals = [
        (row, label)
        for (row, label), number in zip(labelled, numbers, strict=True)
        if isinstance(label, float) or (number is not None and not _is_whole(label))
    ]
    kind = config.kind
    if kind is None:
        all_numbers = None not in numbers
        scores = all_numbers and any(n is not None and not n.is_integer() for n in numbers)
        kind = "regression" if scores else "classification"
    if kind == "regression":
        return _Labels(kind, ())
    if decimals:
        row, label = decimals[0]
        raise UserError(
            f"{row.place}: the label {label} is a number with decimals, where classes are "
            "expected: write whole numbers or names, or call it a regression (--kind regression)"
        )
    names = {str(label) for _, label in labelled}
    whole = all(_is_whole(name) for name in names)
    return _Labels(kind, tuple(sorted(names, key=int if whole else None)))


def _examples(rows: list[Row], labels: _Labels, config: Columns) -> tuple[TextExample, ...]:
    places: dict[str, str] = {}
    examples = []
    for number, row in enumerate(rows):
        name = str(number) if config.id is None else cell_text(row, config.id, "id")
        if name in places:
            raise UserError(f"{row.place}: the id {name!r} stands already in {places[name]}")
        places[name] = row.place
        pair = None if config.text_pair is None else cell_text(row, config.text_pair, "text")
        examples.append(
            TextExample(
                id=name,
                text=cell_text(row, config.text, "text"),
                text_pair=pair,
                label=_checked_label(row, labels, config),
            )
        )
    return tuple(examples)


def cell_text(row: Row, column: str, what: str) -> str:
    """A cell's text; UserError, which says `what` it is, where there is none."""
    value = row.cells.get(column)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise UserError(
            f"{row.place}: the {what} in the column {column!r} is empty; fill it or remove the row"
        )
    if not isinstance(value, str):
        raise UserError(
            f"{row.place}: the column {column!r} holds a {type(value).__name__}; expected text"
        )
    return value


def _checked_label(row: Row, labels: _Labels, config: Columns) -> str | float | None:
    label = _label(row, config.label)
    if label is None:
        return None
    if labels.kind == "regression":
        number = _number(label)
        if number is None or not math.isfinite(number):
            raise UserError(f"{row.place}: the label {label!r} is no number; expected a score")
        return number
    if str(label) not in labels.names:
        near = difflib.get_close_matches(str(label), labels.names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        shown = ", ".join(labels.names[:20]) + (", ..." if len(labels.names) > 20 else "")
        raise UserError(
            f"{row.place}: the label {str(label)!r} does not occur in train; {hint}"
            f"its labels: {shown}"
        )
    return str(label)


def _number(label: str | int | float) -> float | None:
    try:
        return float(label)
    except ValueError:
        return None


def _is_whole(label: str | int | float) -> bool:
    text = str(label)
    return text.removeprefix("-").isdecimal() and text.isascii()
