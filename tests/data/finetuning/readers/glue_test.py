"""Tests reading GLUE's official files: official counts, peculiarities of its TSV, errors."""

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bert_jax.config.labeled_data import Glue, GlueName, TaskConfig
from bert_jax.data.finetuning.readers.glue import GLUE_TASKS
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import ConfigError, UserError

# The number of examples of each GLUE split in the shared data, which lacks some splits.
# QQP has GLUE's format, but another split.
COUNTS: dict[GlueName, dict[str, int]] = {
    "cola": {"train": 8551, "dev": 1043, "test": 1063},
    "sst2": {"train": 67349, "dev": 872, "test": 1821},
    "mrpc": {"train": 3668, "dev": 408, "test": 1725},
    "stsb": {"train": 5749, "dev": 1500, "test": 1379},
    "qqp": {"dev": 20212},
    "mnli": {"dev": 9815, "ax": 1104},
    "qnli": {"dev": 5463, "test": 5463},
    "rte": {"train": 2490, "dev": 277, "test": 3000},
    "wnli": {"train": 635, "dev": 71, "test": 146},
    "ax": {"test": 1104},
}
# The number of dev examples of class 1 (for MNLI of all classes): published, or counted with awk.
DEV_LABELS: dict[GlueName, dict[str, int]] = {
    "cola": {"unacceptable": 322, "acceptable": 721},
    "sst2": {"negative": 428, "positive": 444},
    "mrpc": {"not_equivalent": 129, "equivalent": 279},
    "qqp": {"not_duplicate": 20212 - 7585, "duplicate": 7585},
    "mnli": {"entailment": 3479, "neutral": 3123, "contradiction": 3213},
    "qnli": {"entailment": 2702, "not_entailment": 2761},
    "rte": {"entailment": 146, "not_entailment": 131},
    "wnli": {"not_entailment": 40, "entailment": 31},
}


def read(config: TaskConfig) -> Any:
    """Reads a task; untyped, because its examples have many types."""
    return load_task(config)


def write(folder: Path, name: str, text: str | bytes) -> str:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(folder)


@pytest.mark.parametrize("name", COUNTS)
def test_official_counts(glue: Path, name: GlueName):
    task = read(Glue(task=name, folder=str(glue)))
    assert {split: len(examples) for split, examples in task.splits.items()} == COUNTS[name]
    assert task.name == f"glue/{name}" and task.notes == ()
    for split, examples in task.splits.items():
        assert [e.id for e in examples] == [str(n) for n in range(len(examples))]
        labeled = {getattr(e, "label", None) is not None for e in examples}
        assert labeled == {split in ("train", "dev")}
    if name in DEV_LABELS:
        counted = Counter(getattr(e, "label", None) for e in task.splits["dev"])
        assert counted == DEV_LABELS[name] and set(counted) == set(task.labels)


def test_every_task_has_its_official_metric_and_classes():
    metrics = {name: spec.metrics for name, spec in GLUE_TASKS.items()}
    assert metrics == {
        "cola": ("matthews",),
        "sst2": ("accuracy",),
        "mrpc": ("f1", "accuracy"),
        "stsb": ("pearson", "spearman"),
        "qqp": ("f1", "accuracy"),
        "mnli": ("accuracy",),
        "qnli": ("accuracy",),
        "rte": ("accuracy",),
        "wnli": ("accuracy",),
        "ax": ("matthews",),
    }
    assert all(len(spec.labels_by_alias()) == len(spec.labels) for spec in GLUE_TASKS.values())
    assert set(COUNTS) == set(GLUE_TASKS)


def test_cells_are_literal_text(glue: Path):
    """Tests a quote at the start of a cell, where csv would read up to the next quote."""
    dev = read(Glue(task="mrpc", folder=str(glue))).splits["dev"]
    assert dev[0].text_pair == (
        '" The foodservice pie business does not fit our long-term growth strategy .'
    )
    scores = [e.label for e in read(Glue(task="stsb", folder=str(glue))).splits["dev"]]
    assert scores[0] == 5.0 and min(scores) >= 0 and max(scores) <= 5


def test_byte_order_mark_line_ends_and_gzip(tmp_path):
    """Tests a byte-order mark, CRLF, a missing last newline, gzip, and U+2028 within a line."""
    rows = '﻿sentence\tlabel\r\n"quoted\t1\r\na\u2028b \x85 c\t0'
    folder = write(tmp_path, "SST-2/train.tsv.gz", gzip.compress(rows.encode()))
    task = read(Glue(task="sst2", folder=folder))
    train = [(e.text, e.label) for e in task.splits["train"]]
    assert train == [('"quoted', "positive"), ("a\u2028b \x85 c", "negative")]
    assert list(task.splits) == ["train"]


def test_test_set_is_labeled_or_unlabeled(tmp_path):
    folder = write(tmp_path, "CoLA/test.tsv", "index\tsentence\n0\tone\n")
    assert read(Glue(task="cola", folder=folder)).splits["test"][0].label is None
    folder = write(
        tmp_path, "RTE/test.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n"
    )
    assert read(Glue(task="rte", folder=folder)).splits["test"][0].label == "entailment"


def test_invalid_lines_of_qqp_are_skipped_and_counted(tmp_path):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    text = header + "0\t1\t2\tone?\ttwo?\t0\n1\t1\t2\tcut\nhere?\n2\t1\t2\t\ttwo?\t1\n"
    task = read(Glue(task="qqp", folder=write(tmp_path, "QQP/train.tsv", text)))
    assert [e.text for e in task.splits["train"]] == ["one?", ""]
    assert task.notes == (f"{tmp_path}/QQP/train.tsv: 2 truncated lines were left out.",)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\n",
         r"RTE/dev\.tsv, line 2: 3 columns; expected 4 \(index, sentence1, sentence2, label\)"),
        ("RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel\n\n0\ta\tb\tc\td\n",
         r"line 3: 5 columns"),
        ("RTE/dev.tsv", "index\tsentence1\tsentence\tlabel\n0\ta\tb\tc\n",
         r"no column 'sentence2'; did you mean 'sentence'"),
        ("RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n",
         r"line 2: the label in the column 'label' is '1'; expected one of entailment"),
        ("RTE/dev.tsv", "", r"dev\.tsv is empty; expected a first line"),
        ("RTE/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n",
         r"all 1 training examples have the label 'entailment'"),
        ("rte.tsv", "", r"has no file of rte; expected RTE/train\.tsv, RTE/dev\.tsv, RTE/test"),
        ("RTE.tsv", "", r"the folder that contains the folder RTE$"),
    ],
)  # fmt: skip
def test_invalid_files_are_reported(tmp_path, name: str, text: str, message: str):
    folder = write(tmp_path, name, text)
    with pytest.raises(UserError, match=message):
        read(Glue(task="rte", folder=folder))


def test_invalid_score_is_reported(tmp_path):
    header = "sentence1\tsentence2\tscore\n"
    folder = write(tmp_path, "STS-B/train.tsv", header + "a\tb\t2.5\na\tb\tmuch\n")
    with pytest.raises(
        UserError, match=r"line 3: the score in the column 'score' is 'much'; expected a number"
    ):
        read(Glue(task="stsb", folder=folder))


def test_invalid_configs_are_rejected():
    with pytest.raises(ConfigError, match=r"Glue\.task is 'rtee'; expected one of cola"):
        Glue(task="rtee")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="does not exist; expected the GLUE folder with RTE/"):
        read(Glue(task="rte", folder="/nowhere"))
