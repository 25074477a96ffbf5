"""Reads multiple choice in the format of SWAG (Zellers et al. 2018)."""

import re

from bert_jax.config.labeled_data import Swag
from bert_jax.data.finetuning.example import ChoiceExample, Task
from bert_jax.data.finetuning.readers.columns import require_columns
from bert_jax.data.finetuning.readers.tabular_files import DataTable, TableRow, read_table
from bert_jax.errors import UserError

CONTEXT, PROMPT, LABEL = "sent1", "sent2", "label"


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
            has_labels = split != "test" or LABEL in table.columns
            require_columns(table, path, [CONTEXT, PROMPT, LABEL if has_labels else None])
            counts[path] = len(endings)
            splits[split] = tuple(
                _example(number, row, endings, has_labels) for number, row in enumerate(table.rows)
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


def _example(row_index: int, row: TableRow, endings: list[str], has_labels: bool) -> ChoiceExample:
    for column in (CONTEXT, *endings):
        if not str(row.cells.get(column) or "").strip():
            raise UserError(f"{row.location}: the column {column!r} is empty")
    label = None
    if has_labels:
        cell = str(row.cells.get(LABEL)).strip()
        if cell not in (str(number) for number in range(len(endings))):
            raise UserError(
                f"{row.location}: the label is {cell!r}; expected a number from 0 to "
                f"{len(endings) - 1}"
            )
        label = int(cell)
    return ChoiceExample(
        id=str(row_index),
        context=str(row.cells[CONTEXT]),
        choices=tuple(str(row.cells[ending]) for ending in endings),
        prompt=str(row.cells.get(PROMPT) or ""),
        label=label,
    )
