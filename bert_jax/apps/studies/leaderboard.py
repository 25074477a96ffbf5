"""Writes the zip file that GLUE's leaderboard accepts: a file of predictions for each test set.

Each file is tab-separated, with the header "index", "prediction" and a line for each example of the
test file, counted from 0. Classes are written as in the training files, STS-B as a score in [0, 5].
The leaderboard requires all eleven files.
"""

import io
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.apps.studies.benchmark import read_predictions
from bert_jax.config.labeled_data import Glue
from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.finetuning.readers.glue import GLUE_TASKS
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_path

FILE = "submission.zip"
HEADER = "index\tprediction\n"
_DATE = (1980, 1, 1, 0, 0, 0)  # a fixed date, so that the same predictions give the same bytes


@dataclass(frozen=True, kw_only=True)
class TestSet:
    """Describes one file of the zip: the task and split that it holds, and its size."""

    task: str
    split: str
    num_examples: int


TEST_SETS = {
    "CoLA.tsv": TestSet(task="cola", split="test", num_examples=1_063),
    "SST-2.tsv": TestSet(task="sst2", split="test", num_examples=1_821),
    "MRPC.tsv": TestSet(task="mrpc", split="test", num_examples=1_725),
    "STS-B.tsv": TestSet(task="stsb", split="test", num_examples=1_379),
    "QQP.tsv": TestSet(task="qqp", split="test", num_examples=390_965),
    "MNLI-m.tsv": TestSet(task="mnli", split="test", num_examples=9_796),
    "MNLI-mm.tsv": TestSet(task="mnli", split="test_mismatched", num_examples=9_847),
    "QNLI.tsv": TestSet(task="qnli", split="test", num_examples=5_463),
    "RTE.tsv": TestSet(task="rte", split="test", num_examples=3_000),
    "WNLI.tsv": TestSet(task="wnli", split="test", num_examples=146),
    "AX.tsv": TestSet(task="mnli", split="ax", num_examples=1_104),
}


def write_submission(
    file: Path, best_run: Callable[[str], Path | None], glue_dir: str
) -> dict[str, str]:
    """Writes the test sets for which there are predictions.

    WNLI is predicted as the majority class of its training data, as in most submissions: its dev
    and test sets contradict its training set, and models trained on it are worse than that.

    Args:
      file: the zip file.
      best_run: returns the folder of the run whose predictions of a task are used; None if none.
      glue_dir: the folder of the official GLUE files.

    Returns:
      {name of a file that is missing or that the leaderboard would reject: reason}.
    """
    problems: dict[str, str] = {}
    with atomic_path(file) as temporary_file, zipfile.ZipFile(temporary_file, "w") as archive:
        for name, test_set in TEST_SETS.items():
            try:
                predictions = _test_set_predictions(test_set, best_run, glue_dir)
            except UserError as error:
                problems[name] = f"missing: {error}"
                continue
            if len(predictions) != test_set.num_examples:
                problems[name] = (
                    f"{len(predictions):,} examples; "
                    f"the official test set has {test_set.num_examples:,}"
                )
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, submission_file(test_set.task, predictions))
    return problems


def submission_file(task: str, predictions: Sequence[dict[str, Any]]) -> str:
    """Formats the predictions of a run as one file of the zip."""
    spec = GLUE_TASKS[task]
    class_names = {label: class_name for class_name, label in spec.labels_by_alias().items()}
    text = io.StringIO()
    text.write(HEADER)
    for row in predictions:
        if spec.labels:
            prediction = class_names[row["label"]]
        else:
            prediction = f"{min(max(row['value'], 0.0), 5.0):.3f}"
        text.write(f"{row['id']}\t{prediction}\n")
    return text.getvalue()


def _test_set_predictions(
    test_set: TestSet, best_run: Callable[[str], Path | None], glue_dir: str
) -> list[dict[str, Any]]:
    if test_set.task == "wnli":
        return _majority_predictions(glue_dir)
    run_path = best_run(test_set.task)
    if run_path is None:
        raise UserError(f"no finished run of {test_set.task}")
    return read_predictions(run_path, test_set.split)


def _majority_predictions(glue_dir: str) -> list[dict[str, Any]]:
    """Predicts the most frequent label of WNLI's training set for its test set."""
    splits = load_task(Glue(task="wnli", folder=glue_dir)).splits
    for split in ("train", "test"):
        if split not in splits:
            raise UserError(f"{glue_dir} has no {split} split of wnli")
    train = [example for example in splits["train"] if isinstance(example, TextExample)]
    (label, _), *_ = Counter(example.label for example in train).most_common()
    return [{"id": example.id, "label": label} for example in splits["test"]]
