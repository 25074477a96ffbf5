"""Reads GLUE (Wang et al. 2019) from its official TSV files, with a table of tasks, and SNLI."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bert_jax.config.labeled_data import Glue, Snli
from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.data.finetuning.readers.columns import require_columns
from bert_jax.data.finetuning.readers.tabular_files import DataTable, TableRow, read_table, read_tsv
from bert_jax.errors import UserError

_FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """Describes the files, labels and metrics of one task.

    Attributes:
      folder_names: possible names of the task's folder, the official one first.
      text, text_pair, label: column names.
      labels: class names in official order (as in TFDS and Hugging Face's datasets); empty for a
        regression.
      label_aliases: how files write these classes, in the same order; the leaderboard expects these
        in submissions.
      metrics: official metrics, the main one first.
      files: split -> file name.
      header: column names of files without a header line.
      skip_short_lines: whether the official files are known to contain a few truncated lines.
    """

    folder_names: tuple[str, ...]
    text: str = "sentence1"
    text_pair: str | None = "sentence2"
    label: str = "label"
    labels: tuple[str, ...] = ()
    label_aliases: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy",)
    files: Mapping[str, str] = field(default_factory=lambda: _FILES)
    header: tuple[str, ...] | None = None
    skip_short_lines: bool = False

    def labels_by_alias(self) -> dict[str, str]:
        """Returns how files write each class -> class name."""
        return dict(zip(self.label_aliases or self.labels, self.labels, strict=True))


GLUE_TASKS: dict[str, GlueTask] = {
    "cola": GlueTask(
        folder_names=("CoLA",),
        text="sentence",
        text_pair=None,
        labels=("unacceptable", "acceptable"),
        label_aliases=("0", "1"),
        metrics=("matthews",),
        header=("source", "label", "judgement", "sentence"),
    ),
    "sst2": GlueTask(
        folder_names=("SST-2",),
        text="sentence",
        text_pair=None,
        labels=("negative", "positive"),
        label_aliases=("0", "1"),
    ),
    "mrpc": GlueTask(
        folder_names=("MRPC",),
        text="#1 String",
        text_pair="#2 String",
        label="Quality",
        labels=("not_equivalent", "equivalent"),
        label_aliases=("0", "1"),
        metrics=("f1", "accuracy"),
    ),
    "stsb": GlueTask(folder_names=("STS-B",), label="score", metrics=("pearson", "spearman")),
    "qqp": GlueTask(
        folder_names=("QQP",),
        text="question1",
        text_pair="question2",
        label="is_duplicate",
        labels=("not_duplicate", "duplicate"),
        label_aliases=("0", "1"),
        metrics=("f1", "accuracy"),
        skip_short_lines=True,
    ),
    "mnli": GlueTask(
        folder_names=("MNLI",),
        label="gold_label",
        labels=_NLI,
        files={
            "train": "train.tsv",
            "dev": "dev_matched.tsv",
            "dev_mismatched": "dev_mismatched.tsv",
            "test": "test_matched.tsv",
            "test_mismatched": "test_mismatched.tsv",
        },
    ),
    "qnli": GlueTask(
        folder_names=("QNLI",), text="question", text_pair="sentence", labels=_ENTAILMENT
    ),
    "rte": GlueTask(folder_names=("RTE",), labels=_ENTAILMENT),
    "wnli": GlueTask(
        folder_names=("WNLI",), labels=("not_entailment", "entailment"), label_aliases=("0", "1")
    ),
    "ax": GlueTask(
        folder_names=("AX", "diagnostic"),
        labels=_NLI,
        metrics=("matthews",),
        files={"test": "diagnostic.tsv"},
    ),
}


def read_glue(config: Glue) -> Task:
    """Reads a task from `config.folder`, with the splits whose files exist.

    MNLI has the diagnostic set as the split "ax" if its folder exists. The ids are row numbers, as
    in the leaderboard.

    Raises:
      UserError: there is no file; a row has too few columns; a label is not one of the task.
    """
    assert config.folder is not None
    folder = Path(config.folder)
    splits, notes = _read_splits(folder, GLUE_TASKS[config.task])
    if not splits:
        spec = GLUE_TASKS[config.task]
        expected_files = ", ".join(f"{spec.folder_names[0]}/{name}" for name in spec.files.values())
        if not folder.is_dir():
            raise UserError(
                f"{folder} does not exist; expected the GLUE folder with {expected_files}"
            )
        raise UserError(
            f"{folder} has no file of {config.task}; expected {expected_files} (or .tsv.gz): give "
            f"the folder that contains the folder {spec.folder_names[0]}"
        )
    if config.task == "mnli":
        diagnostic, _ = _read_splits(folder, GLUE_TASKS["ax"])
        if diagnostic:
            splits["ax"] = diagnostic["test"]
    return make_glue_task(config, splits, notes)


def make_glue_task(
    config: Glue, splits: dict[str, tuple[TextExample, ...]], notes: tuple[str, ...] = ()
) -> Task:
    """Makes a GLUE task from examples that were read from files or TFDS."""
    spec = GLUE_TASKS[config.task]
    return Task(
        name=f"glue/{config.task}",
        kind="classification" if spec.labels else "regression",
        labels=spec.labels,
        metrics=spec.metrics,
        splits={**splits},
        notes=notes,
    )


def find_file(folder: Path, names: tuple[str, ...]) -> str | None:
    """Returns the first of these files that exists in the folder, plain or with .gz."""
    candidates = [folder / (name + ending) for name in names for ending in ("", ".gz")]
    return next((str(file) for file in candidates if file.is_file()), None)


def _read_splits(
    folder: Path, spec: GlueTask
) -> tuple[dict[str, tuple[TextExample, ...]], tuple[str, ...]]:
    splits, notes = {}, []
    for split, name in spec.files.items():
        path = find_file(
            folder, tuple(f"{folder_name}/{name}" for folder_name in spec.folder_names)
        )
        if path is None:
            continue
        table = read_tsv(
            path,
            # The official files do not escape quotes, and many texts contain a single one.
            quotes="literal",
            # The test file of CoLA has a header line, its other files have none.
            header=None if split.startswith("test") else spec.header,
            skip_short_lines=spec.skip_short_lines,
        )
        label = None if split.startswith("test") and spec.label not in table.columns else spec.label
        require_columns(table, path, [spec.text, spec.text_pair, label])
        if table.skipped_lines:
            notes.append(f"{path}: {table.skipped_lines} truncated lines were left out.")
        splits[split] = tuple(
            _example(row_index, row, spec, label) for row_index, row in enumerate(table.rows)
        )
    return splits, tuple(notes)


def _example(row_index: int, row: TableRow, spec: GlueTask, label: str | None) -> TextExample:
    return TextExample(
        id=str(row_index),
        text=row.cells[spec.text],
        text_pair=None if spec.text_pair is None else row.cells[spec.text_pair],
        label=None if label is None else _parse_label(row, label, spec),
    )


def _parse_label(row: TableRow, column: str, spec: GlueTask) -> str | float:
    cell = row.cells[column]
    if spec.labels:
        names = spec.labels_by_alias()
        if cell not in names:
            raise UserError(
                f"{row.location}: the label in the column {column!r} is {cell!r}; expected one of "
                f"{', '.join(names)}"
            )
        return names[cell]
    try:
        score = float(cell)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise UserError(
            f"{row.location}: the score in the column {column!r} is {cell!r}; expected a number"
        )
    return score


LABELS = ("entailment", "neutral", "contradiction")
# How files write the classes; "-" or -1 means that the annotators did not agree.
_LABEL_ALIASES = {name: name for name in LABELS} | dict(zip("012", LABELS, strict=True))
_NO_AGREED_LABEL = ("-", "-1", "")

_SNLI_FILES = {
    "train": ("snli_1.0_train.jsonl", "train.tsv", "snli_train.tsv"),
    "dev": ("snli_1.0_dev.jsonl", "dev.tsv", "snli_dev.tsv", "snli_validation.tsv"),
    "test": ("snli_1.0_test.jsonl", "test.tsv", "snli_test.tsv"),
}
# Names of (premise, hypothesis, label) in the official files, and in files made from TFDS.
_SNLI_COLUMNS = (("sentence1", "sentence2", "gold_label"), ("premise", "hypothesis", "label"))


def read_snli(config: Snli) -> Task:
    """Reads the task from a folder; examples without an agreed label are left out, with a note.

    Raises:
      UserError: there is no file; the columns are unknown; a label is none of the three classes.
    """
    folder, splits, notes = Path(config.folder), {}, []
    for split, names in _SNLI_FILES.items():
        path = find_file(folder, names)
        if path is None:
            continue
        table = read_table(path)
        columns = _snli_columns(table, path)
        labeled_rows = [
            row for row in table.rows if str(row.cells.get(columns[2])) not in _NO_AGREED_LABEL
        ]
        if num_skipped := len(table.rows) - len(labeled_rows):
            notes.append(f"{path}: {num_skipped:,} rows without an agreed label were left out.")
        splits[split] = tuple(
            _snli_example(row_index, row, columns) for row_index, row in enumerate(labeled_rows)
        )
    if not splits:
        expected_files = ", ".join(names[0] for names in _SNLI_FILES.values())
        raise UserError(
            f"{folder} has no file of SNLI; expected {expected_files}, or train.tsv, dev.tsv, "
            f"test.tsv with columns {', '.join(_SNLI_COLUMNS[0])} or {', '.join(_SNLI_COLUMNS[1])}"
        )
    return Task(
        name="snli",
        kind="classification",
        labels=LABELS,
        metrics=("accuracy",),
        splits={**splits},
        notes=tuple(notes),
    )


def _snli_columns(table: DataTable, path: str) -> tuple[str, str, str]:
    for columns in _SNLI_COLUMNS:
        if set(columns) <= set(table.columns):
            return columns
    require_columns(table, path, _SNLI_COLUMNS[0])
    raise AssertionError("require_columns has raised")


def _snli_example(row_index: int, row: TableRow, columns: tuple[str, str, str]) -> TextExample:
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
