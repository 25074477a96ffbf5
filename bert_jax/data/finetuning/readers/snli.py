"""Reads SNLI (Bowman et al. 2015) from the official JSON lines or from TSV files."""

from pathlib import Path

from bert_jax.config.labeled_data import Snli
from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.data.finetuning.readers.columns import require_columns
from bert_jax.data.finetuning.readers.glue import find_file
from bert_jax.data.finetuning.readers.tabular_files import DataTable, TableRow, read_table
from bert_jax.errors import UserError

LABELS = ("entailment", "neutral", "contradiction")
# How files write the classes; "-" or -1 means that the annotators did not agree.
_LABEL_ALIASES = {name: name for name in LABELS} | dict(zip("012", LABELS, strict=True))
_NO_AGREED_LABEL = ("-", "-1", "")

_FILES = {
    "train": ("snli_1.0_train.jsonl", "train.tsv", "snli_train.tsv"),
    "dev": ("snli_1.0_dev.jsonl", "dev.tsv", "snli_dev.tsv", "snli_validation.tsv"),
    "test": ("snli_1.0_test.jsonl", "test.tsv", "snli_test.tsv"),
}
# Names of (premise, hypothesis, label) in the official files, and in files made from TFDS.
_COLUMNS = (("sentence1", "sentence2", "gold_label"), ("premise", "hypothesis", "label"))


def read_snli(config: Snli) -> Task:
    """Reads the task from a folder; examples without an agreed label are left out, with a note.

    Raises:
      UserError: there is no file; the columns are unknown; a label is none of the three classes.
    """
    folder, splits, notes = Path(config.folder), {}, []
    for split, names in _FILES.items():
        path = find_file(folder, names)
        if path is None:
            continue
        table = read_table(path)
        columns = _columns(table, path)
        labeled_rows = [
            row for row in table.rows if str(row.cells.get(columns[2])) not in _NO_AGREED_LABEL
        ]
        if num_skipped := len(table.rows) - len(labeled_rows):
            notes.append(f"{path}: {num_skipped:,} rows without an agreed label were left out.")
        splits[split] = tuple(
            _example(row_index, row, columns) for row_index, row in enumerate(labeled_rows)
        )
    if not splits:
        expected_files = ", ".join(names[0] for names in _FILES.values())
        raise UserError(
            f"{folder} has no file of SNLI; expected {expected_files}, or train.tsv, dev.tsv, "
            f"test.tsv with columns {', '.join(_COLUMNS[0])} or {', '.join(_COLUMNS[1])}"
        )
    return Task(
        name="snli",
        kind="classification",
        labels=LABELS,
        metrics=("accuracy",),
        splits={**splits},
        notes=tuple(notes),
    )


def _columns(table: DataTable, path: str) -> tuple[str, str, str]:
    for columns in _COLUMNS:
        if set(columns) <= set(table.columns):
            return columns
    require_columns(table, path, _COLUMNS[0])
    raise AssertionError("require_columns has raised")


def _example(row_index: int, row: TableRow, columns: tuple[str, str, str]) -> TextExample:
    premise, hypothesis, label = (row.cells.get(column) for column in columns)
    for column, text in zip(columns[:2], (premise, hypothesis), strict=True):
        if not isinstance(text, str):
            raise UserError(f"{row.location}: the column {column!r} is {text!r}; expected text")
    if str(label) not in _LABEL_ALIASES:
        raise UserError(
            f"{row.location}: the label is {label!r}; expected one of {', '.join(_LABEL_ALIASES)}"
        )
    return TextExample(
        id=str(row_index),
        text=str(premise),
        text_pair=str(hypothesis),
        label=_LABEL_ALIASES[str(label)],
    )
