"""Reads texts and labels from tables by the names of their columns; SWAG is such a table, too."""

import functools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bert_jax.config.labeled_data import (
    COLUMNS_METRICS,
    MULTI_LABEL,
    Columns,
    ColumnsKind,
    Swag,
)
from bert_jax.data.finetuning.example import ChoiceExample, Task, TextExample
from bert_jax.data.finetuning.readers.tabular_files import DataTable, TableRow, read_table
from bert_jax.errors import UserError, did_you_mean

_DEFAULT_SEPARATOR = ","
_LIKELY_SEPARATORS = "|,;"


@dataclass(frozen=True)
class _Labels:
    kind: ColumnsKind
    names: tuple[str, ...] = ()

    @functools.cached_property
    def name_set(self) -> frozenset[str]:
        """The names again: looking one up among thousands in a tuple is slow."""
        return frozenset(self.names)


def read_columns(config: Columns) -> Task:
    """Reads a classification, multi-label, regression or ranking task from tables.

    The classes are the labels of train (or of dev or test, if there is no train): whole numbers in
    numerical order, names in alphabetical order. Rows of train and dev without a label are left
    out, with a note. All rows of test are kept, so that predictions are in the order of the file.

    The labels of a multi-label task are a list in JSON or Parquet, and otherwise a text that the
    separator splits. An empty list and an empty text are labeled with nothing; null and a missing
    field are not labeled.

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
    notes += _question_separators(labels, config)
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
    labeled = [row for row in table.rows if _is_labeled(row, config)]
    if not labeled:
        raise UserError(f"{path}: the column {label!r} is empty in all rows; expected labels")
    if num_missing := len(table.rows) - len(labeled):
        notes.append(f"{path}: {num_missing:,} rows without a label were left out.")
    return labeled


def _read_label(row: TableRow, config: Columns) -> str | int | float | None:
    """Returns the label of a row as text or number; None if it has none."""
    value = _label_cell(row, config)
    if isinstance(value, str):
        return value.strip() or None
    # JSON's true and false are class names here, spelled as in the file. A bool is also an int, so
    # this test comes first.
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, (int, float)):
        return value
    hint = f"; lists of labels need --kind {MULTI_LABEL}" if isinstance(value, list) else ""
    raise UserError(
        f"{row.location}: the label in the column {config.label!r} is of type "
        f"{type(value).__name__}; expected a name or a number{hint}"
    )


def _label_cell(row: TableRow, config: Columns) -> Any:
    """Returns the value in the column of the label; None if it is missing."""
    value: Any = None if config.label is None else row.cells.get(config.label)
    # NaN is how pandas writes a missing number.
    return None if isinstance(value, float) and math.isnan(value) else value


def _is_labeled(row: TableRow, config: Columns) -> bool:
    read = _read_names if config.kind == MULTI_LABEL else _read_label
    return read(row, config) is not None


def _read_names(row: TableRow, config: Columns) -> tuple[str, ...] | None:
    """Returns the labels in a list or in a text with separators, each once; None if unlabeled."""
    value = _label_cell(row, config)
    if value is None:
        return None
    location = f"{row.location}: the column {config.label!r}"
    if isinstance(value, str):
        separator = config.label_separator or _DEFAULT_SEPARATOR
        names = [name.strip() for name in value.split(separator)] if value.strip() else []
        if "" in names:
            raise UserError(
                f"{location} has {value!r}, which has an empty label if split at {separator!r}; "
                "expected labels with one separator between them; --label-separator names another"
            )
        return tuple(dict.fromkeys(names))
    values = value if isinstance(value, list) else [value]
    for item in values:
        is_name = isinstance(item, int) or (isinstance(item, str) and item.strip())
        if not is_name:
            raise UserError(
                f"{location} has the label {item!r}; expected a list of names or whole numbers, "
                "or a text with labels and separators"
            )
    # JSON's true and false are spelled as in the file.
    names = [str(item).lower() if isinstance(item, bool) else str(item).strip() for item in values]
    return tuple(dict.fromkeys(names))


def _question_separators(labels: _Labels, config: Columns) -> list[str]:
    """Returns a note if most labels contain a separator, and so may be several labels in one."""
    known = None
    if labels.kind == MULTI_LABEL:
        advice, known = "--label-separator {!r}", config.label_separator or _DEFAULT_SEPARATOR
    elif config.kind is None and labels.kind == "classification":
        advice = f"--kind {MULTI_LABEL} --label-separator {{!r}}"
    else:
        return []
    for separator in _LIKELY_SEPARATORS:
        containing = [name for name in labels.names if separator in name]
        parts = {part.strip() for name in labels.names for part in name.split(separator)}
        # The classes are counted and not the rows, most of which may have one label. With more
        # parts than names, the names are rather phrases with punctuation.
        if separator != known and 2 * len(containing) > len(labels.names) > len(parts):
            return [
                f"The column {config.label!r} has {len(labels.names):,} different labels, of which "
                f"{len(containing):,} contain {separator!r}, such as {containing[0]!r}; if these "
                f"are several labels of one text, add {advice.format(separator)}."
            ]
    return []


def _infer_labels(rows: dict[str, list[TableRow]], config: Columns) -> _Labels:
    """Infers kind and classes from the first of train, dev and test that has labels."""
    if config.kind == MULTI_LABEL:
        by_split = ([_read_names(row, config) for row in each] for each in rows.values())
        found = next((each for each in by_split if any(n is not None for n in each)), [])
        return _Labels(config.kind, _sort_names(name for names in found for name in names or ()))
    for split_rows in rows.values():
        labeled = [
            (row, label) for row in split_rows if (label := _read_label(row, config)) is not None
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
    return _Labels(kind, _sort_names(str(label) for _, label in labeled))


def _sort_names(labels: Iterable[str]) -> tuple[str, ...]:
    names = set(labels)
    all_integers = all(_is_integer(name) for name in names)
    return tuple(sorted(names, key=int if all_integers else None))


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


def _validate_label(
    row: TableRow, labels: _Labels, config: Columns
) -> str | float | tuple[str, ...] | None:
    if config.kind == MULTI_LABEL:
        names = _read_names(row, config)
        for name in names or ():
            _require_known(name, row, labels)
        return names
    label = _read_label(row, config)
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
    _require_known(str(label), row, labels)
    return str(label)


def _require_known(name: str, row: TableRow, labels: _Labels) -> None:
    if name not in labels.name_set:
        shown = ", ".join(labels.names[:20]) + (", ..." if len(labels.names) > 20 else "")
        raise UserError(
            f"{row.location}: the label {name!r} does not occur in train; "
            f"{did_you_mean(name, labels.names)}the labels of train are {shown}"
        )


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
