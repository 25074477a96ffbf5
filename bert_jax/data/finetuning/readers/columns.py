"""Reads texts and labels from tables by the names of their columns; SWAG is such a table, too."""

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bert_jax.config.labeled_data import COLUMNS_METRICS, Columns, ColumnsKind, Swag
from bert_jax.data.finetuning.example import ChoiceExample, Task, TextExample
from bert_jax.data.finetuning.readers.tabular_files import DataTable, TableRow, read_table
from bert_jax.errors import UserError, did_you_mean


@dataclass(frozen=True)
class _Labels:
    kind: ColumnsKind
    names: tuple[str, ...] = ()

    @functools.cached_property
    def name_set(self) -> frozenset[str]:
        """The names again: looking one up among thousands in a tuple is slow."""
        return frozenset(self.names)


def read_columns(config: Columns) -> Task:
    """Reads a classification, regression or ranking task from tables.

    The classes are the labels of train (or of dev or test, if there is no train): whole numbers in
    numerical order, names in alphabetical order. Rows of train and dev without a label are left
    out, with a note. All rows of test are kept, so that predictions are in the order of the file.

    Raises:
      UserError: a column does not exist (the message names the nearest); a text is empty; a label
        does not occur in train, or has decimals where classes are expected; an id occurs twice.
    """
    paths = {"train": config.train, "dev": config.dev, "test": config.test}
    notes: list[str] = []
    rows = {
        split: _labeled_rows(split, read_table(path, config.encoding), path, config, notes)
        for split, path in paths.items()
        if path is not None
    }
    labels = _infer_labels(rows, config)
    return Task(
        name="columns",
        kind=labels.kind,
        labels=labels.names,
        metrics=COLUMNS_METRICS[labels.kind],
        splits={split: _examples(split_rows, labels, config) for split, split_rows in rows.items()},
        notes=tuple(notes),
    )


def require_columns(table: DataTable, path: str, names: Sequence[str | None]) -> None:
    """Raises a UserError unless the table has all these columns; None in `names` is ignored."""
    for name in names:
        if name is not None and name not in table.columns:
            raise UserError(
                f"{path}: there is no column {name!r}; {did_you_mean(name, table.columns)}"
                f"the columns are {', '.join(table.columns)}"
            )


def _labeled_rows(
    split: str, table: DataTable, path: str, config: Columns, notes: list[str]
) -> list[TableRow]:
    """Returns all rows of a test set, and the labeled rows of train and dev."""
    label = config.label
    if split == "test" and label not in table.columns:
        label = None
    require_columns(table, path, [config.text, config.text_pair, label, config.id])
    if not table.rows:
        raise UserError(f"{path} has no rows; expected at least one")
    if split == "test" or label is None:
        return table.rows
    labeled = [row for row in table.rows if _read_label(row, label) is not None]
    if not labeled:
        raise UserError(f"{path}: the column {label!r} is empty in all rows; expected labels")
    if num_missing := len(table.rows) - len(labeled):
        notes.append(f"{path}: {num_missing:,} rows without a label were left out.")
    return labeled


def _read_label(row: TableRow, column: str | None) -> str | int | float | None:
    """Returns the label of a row as text or number; None if it has none."""
    value: Any = None if column is None else row.cells.get(column)
    if isinstance(value, str):
        return value.strip() or None
    # JSON's true and false are class names here, spelled as in the file. A bool is also an int, so
    # this test comes first.
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isnan(value):  # how pandas writes a missing number
        return None
    if value is None or isinstance(value, (int, float)):
        return value
    raise UserError(
        f"{row.location}: the label is of type {type(value).__name__}; expected a name or a number"
    )


def _infer_labels(rows: dict[str, list[TableRow]], config: Columns) -> _Labels:
    """Infers kind and classes from the first of train, dev and test that has labels."""
    for split_rows in rows.values():
        labeled = [
            (row, label)
            for row in split_rows
            if (label := _read_label(row, config.label)) is not None
        ]
        if labeled:
            break
    else:
        return _Labels(config.kind or "classification")
    # Decided by all rows: a single score such as 3.5 makes the whole numbers beside it scores too.
    numbers = [_parse_number(label) for _, label in labeled]
    decimals = [
        (row, label)
        for (row, label), number in zip(labeled, numbers, strict=True)
        if isinstance(label, float) or (number is not None and not _is_integer(label))
    ]
    kind = config.kind
    if kind is None:
        all_numbers = None not in numbers
        has_scores = all_numbers and any(n is not None and not n.is_integer() for n in numbers)
        kind = "regression" if has_scores else "classification"
    if kind != "classification":
        return _Labels(kind)
    if decimals:
        row, label = decimals[0]
        raise UserError(
            f"{row.location}: the label {label} has decimals, but classes are expected; "
            "expected whole numbers or names as classes, or --kind regression"
        )
    names = {str(label) for _, label in labeled}
    all_integers = all(_is_integer(name) for name in names)
    return _Labels(kind, tuple(sorted(names, key=int if all_integers else None)))


def _examples(rows: list[TableRow], labels: _Labels, config: Columns) -> tuple[TextExample, ...]:
    location_by_id: dict[str, str] = {}
    examples = []
    for row_index, row in enumerate(rows):
        # Predictions are written with this id, so two rows may not share one.
        example_id = str(row_index) if config.id is None else cell_text(row, config.id, "id")
        if example_id in location_by_id:
            raise UserError(
                f"{row.location}: the id {example_id!r} is already used in "
                f"{location_by_id[example_id]}"
            )
        location_by_id[example_id] = row.location
        text_pair = None if config.text_pair is None else cell_text(row, config.text_pair, "text")
        examples.append(
            TextExample(
                id=example_id,
                text=cell_text(row, config.text, "text"),
                text_pair=text_pair,
                label=_validate_label(row, labels, config),
            )
        )
    return tuple(examples)


def cell_text(row: TableRow, column: str, description: str) -> str:
    """Returns the text of a cell; raises a UserError with `description` if it is empty."""
    value = row.cells.get(column)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise UserError(
            f"{row.location}: the {description} in the column {column!r} is empty; fill it or "
            "remove the row"
        )
    if not isinstance(value, str):
        raise UserError(
            f"{row.location}: the column {column!r} has a value of type {type(value).__name__}; "
            "expected text"
        )
    return value


def _validate_label(row: TableRow, labels: _Labels, config: Columns) -> str | float | None:
    label = _read_label(row, config.label)
    if label is None:
        return None
    if labels.kind != "classification":
        value = _parse_number(label)
        if value is None or not math.isfinite(value):
            raise UserError(
                f"{row.location}: the label {label!r} is not a number; expected a score"
            )
        if labels.kind == "ranking" and not 0 <= value <= 1:
            raise UserError(
                f"{row.location}: the label is {label}; expected 0 (not relevant) to 1 (relevant), "
                "because --kind is ranking; divide the scores by the largest possible score"
            )
        return value
    if str(label) not in labels.name_set:
        hint = did_you_mean(str(label), labels.names)
        shown = ", ".join(labels.names[:20]) + (", ..." if len(labels.names) > 20 else "")
        raise UserError(
            f"{row.location}: the label {str(label)!r} does not occur in train; {hint}"
            f"the labels of train are {shown}"
        )
    return str(label)


def _parse_number(label: str | int | float) -> float | None:
    try:
        return float(label)
    except (ValueError, OverflowError):
        return None


def _is_integer(label: str | int | float) -> bool:
    text = str(label)
    digits = text.removeprefix("-")
    # Python converts up to 4,300 digits; a class number has a few.
    return digits.isdecimal() and digits.isascii() and len(digits) <= 100


_CONTEXT, _PROMPT, _LABEL = "sent1", "sent2", "label"


def read_swag(config: Swag) -> Task:
    """Reads the task from CSV files; the test split may have no labels.

    `sent1` is the context; `sent2` is the beginning of each ending `ending0`, `ending1`, ...

    Raises:
      UserError: a column is missing; a label is not the index of an ending; files have different
        numbers of endings.
    """
    splits: dict[str, tuple[ChoiceExample, ...]] = {}
    counts: dict[str, int] = {}
    for split, path in (("train", config.train), ("dev", config.dev), ("test", config.test)):
        if path is not None:
            table = read_table(path, config.encoding)
            endings = _endings(table, path)
            has_labels = split != "test" or _LABEL in table.columns
            require_columns(table, path, [_CONTEXT, _PROMPT, _LABEL if has_labels else None])
            counts[path] = len(endings)
            splits[split] = tuple(
                _choices(number, row, endings, has_labels) for number, row in enumerate(table.rows)
            )
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{count} in {path}" for path, count in counts.items())
        raise UserError(
            f"files have different numbers of endings: {found}; expected the same number"
        )
    return Task(
        name="swag",
        kind="multiple_choice",
        labels=(),
        metrics=("accuracy",),
        splits={**splits},
    )


def _endings(table: DataTable, path: str) -> list[str]:
    """Returns the names of the ending columns in order."""
    numbers = [int(m[1]) for c in table.columns if (m := re.fullmatch(r"ending(\d{1,4})", c))]
    if len(numbers) < 2 or sorted(numbers) != list(range(len(numbers))):
        raise UserError(
            f"{path}: expected columns ending0, ending1, ... with the endings to choose "
            f"from; the columns are {', '.join(table.columns)}"
        )
    return [f"ending{number}" for number in range(len(numbers))]


def _choices(row_index: int, row: TableRow, endings: list[str], has_labels: bool) -> ChoiceExample:
    for column in (_CONTEXT, *endings):
        if not str(row.cells.get(column) or "").strip():
            raise UserError(f"{row.location}: the column {column!r} is empty")
    label = None
    if has_labels:
        cell = str(row.cells.get(_LABEL)).strip()
        if cell not in (str(number) for number in range(len(endings))):
            raise UserError(
                f"{row.location}: the label is {cell!r}; expected a number from 0 to "
                f"{len(endings) - 1}"
            )
        label = int(cell)
    return ChoiceExample(
        id=str(row_index),
        context=str(row.cells[_CONTEXT]),
        choices=tuple(str(row.cells[ending]) for ending in endings),
        prompt=str(row.cells.get(_PROMPT) or ""),
        label=label,
    )
