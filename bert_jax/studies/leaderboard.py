"""The zip that GLUE's leaderboard takes: a file of test predictions for each of its test sets.

Each file is tab-separated, with the header "index", "prediction" and a line for each row of the
test file in its order, counted from 0. Classes are written as the training files write them, STS-B
as a score in [0, 5]. The leaderboard wants all eleven files.
"""

import io
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.aside import written_aside
from bert_jax.data.labelled.config import Glue
from bert_jax.data.labelled.example import TextExample
from bert_jax.data.labelled.glue import GLUE_TASKS
from bert_jax.data.labelled.read import read_task
from bert_jax.errors import UserError
from bert_jax.studies.finished_run import read_predictions

FILE = "submission.zip"
HEADER = "index\tprediction\n"
_DATE = (1980, 1, 1, 0, 0, 0)  # in the archive, so that the same predictions give the same bytes


@dataclass(frozen=True, kw_only=True)
class TestSet:
    """One file of the zip: whose predictions of which split, and how many rows there are."""

    task: str
    split: str
    rows: int


TEST_SETS = {
    "CoLA.tsv": TestSet(task="cola", split="test", rows=1_063),
    "SST-2.tsv": TestSet(task="sst2", split="test", rows=1_821),
    "MRPC.tsv": TestSet(task="mrpc", split="test", rows=1_725),
    "STS-B.tsv": TestSet(task="stsb", split="test", rows=1_379),
    "QQP.tsv": TestSet(task="qqp", split="test", rows=390_965),
    "MNLI-m.tsv": TestSet(task="mnli", split="test", rows=9_796),
    "MNLI-mm.tsv": TestSet(task="mnli", split="test_mismatched", rows=9_847),
    "QNLI.tsv": TestSet(task="qnli", split="test", rows=5_463),
    "RTE.tsv": TestSet(task="rte", split="test", rows=3_000),
    "WNLI.tsv": TestSet(task="wnli", split="test", rows=146),
    "AX.tsv": TestSet(task="mnli", split="ax", rows=1_104),
}


def write_zip(file: Path, best_run: Callable[[str], Path | None], glue_dir: str) -> dict[str, str]:
    """Writes the test sets of which there are predictions.

    WNLI is the majority class of its training data, as in most submissions: its dev and test sets
    contradict its training set, and models trained on it stay below that.

    Args:
      best_run: task -> the folder of the run that predicts; None where there is none.

    Returns:
      {name of a file that is missing or not as the leaderboard wants it: why}.
    """
    wrong: dict[str, str] = {}
    with written_aside(file) as aside, zipfile.ZipFile(aside, "w") as archive:
        for name, wanted in TEST_SETS.items():
            try:
                rows = _rows(wanted, best_run, glue_dir)
            except UserError as error:
                wrong[name] = f"missing: {error}"
                continue
            if len(rows) != wanted.rows:
                wrong[name] = f"{len(rows):,} rows; the official test set has {wanted.rows:,}"
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, submission_file(wanted.task, rows))
    return wrong


def submission_file(task: str, rows: Sequence[dict[str, Any]]) -> str:
    """One file of the zip, from predictions as a run leaves them."""
    spec = GLUE_TASKS[task]
    spelled = {label: spelling for spelling, label in spec.class_names().items()}
    text = io.StringIO()
    text.write(HEADER)
    for row in rows:
        if spec.labels:
            prediction = spelled[row["label"]]
        else:
            prediction = f"{min(max(row['value'], 0.0), 5.0):.3f}"
        text.write(f"{row['id']}\t{prediction}\n")
    return text.getvalue()


def _rows(
    wanted: TestSet, best_run: Callable[[str], Path | None], glue_dir: str
) -> list[dict[str, Any]]:
    if wanted.task == "wnli":
        return _majority(glue_dir)
    run = best_run(wanted.task)
    if run is None:
        raise UserError(f"no finished run of {wanted.task}")
    return read_predictions(run, wanted.split)


def _majority(glue_dir: str) -> list[dict[str, Any]]:
    """WNLI's test set with the most frequent label of its training set."""
    splits = read_task(Glue(task="wnli", folder=glue_dir)).splits
    for split in ("train", "test"):
        if split not in splits:
            raise UserError(f"{glue_dir} has no {split} split of wnli")
    train = [example for example in splits["train"] if isinstance(example, TextExample)]
    (label, _), *_ = Counter(example.label for example in train).most_common()
    return [{"id": example.id, "label": label} for example in splits["test"]]
