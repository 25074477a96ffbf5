"""SNLI (Bowman et al. 2015), as its authors' JSON lines or as TSV files."""

from pathlib import Path

from bert_jax.data.labelled.columns import require_columns
from bert_jax.data.labelled.config import Snli
from bert_jax.data.labelled.example import TextExample
from bert_jax.data.labelled.glue import find_file
from bert_jax.data.labelled.tables import Row, Table, read_table
from bert_jax.data.labelled.task import Task
from bert_jax.errors import UserError

LABELS = ("entailment", "neutral", "contradiction")
# How files write the classes; annotators agreed on none where there is a "-" (or -1).
_SPELLINGS = {name: name for name in LABELS} | dict(zip("012", LABELS, strict=True))
_UNDECIDED = ("-", "-1", "")

_FILES = {
    "train": ("snli_1.0_train.jsonl", "train.tsv", "snli_train.tsv"),
    "dev": ("snli_1.0_dev.jsonl", "dev.tsv", "snli_dev.tsv", "snli_validation.tsv"),
    "test": ("snli_1.0_test.jsonl", "test.tsv", "snli_test.tsv"),
}
# (premise, hypothesis, label) of the authors' files, and of those made from TFDS and the like.
_COLUMNS = (("sentence1", "sentence2", "gold_label"), ("premise", "hypothesis", "label"))


def read_snli(config: Snli) -> Task:
    """The task from a folder; rows without an agreed label are left out, with a note.

    Raises:
      UserError: no file; columns of neither kind; a label that is none of the three.
    """
    folder, splits, notes = Path(config.folder), {}, []
    for split, names in _FILES.items():
        path = find_file(folder, names)
        if path is None:
            continue
        table = read_table(path)
        columns = _columns(table, path)
        decided = [row for row in table.rows if str(row.cells[columns[2]]) not in _UNDECIDED]
        if left_out := len(table.rows) - len(decided):
            notes.append(f"{path}: {left_out:,} rows without an agreed label were left out.")
        splits[split] = tuple(_example(number, row, columns) for number, row in enumerate(decided))
    if not splits:
        wanted = ", ".join(names[0] for names in _FILES.values())
        raise UserError(
            f"{folder} has no file of SNLI; expected {wanted}, or train.tsv, dev.tsv, test.tsv "
            f"with columns {', '.join(_COLUMNS[0])} or {', '.join(_COLUMNS[1])}"
        )
    return Task(
        name="snli",
        kind="classification",
        labels=LABELS,
        metrics=("accuracy",),
        splits={**splits},
        notes=tuple(notes),
    )


def _columns(table: Table, path: str) -> tuple[str, str, str]:
    for columns in _COLUMNS:
        if set(columns) <= set(table.columns):
            return columns
    require_columns(table, path, _COLUMNS[0])
    raise AssertionError("require_columns has raised")


def _example(number: int, row: Row, columns: tuple[str, str, str]) -> TextExample:
    premise, hypothesis, label = (row.cells.get(column) for column in columns)
    if str(label) not in _SPELLINGS:
        raise UserError(
            f"{row.place}: the label {label!r}; expected one of {', '.join(_SPELLINGS)}"
        )
    return TextExample(
        id=str(number),
        text=str(premise),
        text_pair=str(hypothesis),
        label=_SPELLINGS[str(label)],
    )
