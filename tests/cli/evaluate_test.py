"""Tests `bert-jax evaluate` on labeled tables: metrics, order of labels, and error messages."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from bert_jax.cli import main
from bert_jax.export.export import export
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.predict.predictor import Predictor
from bert_jax.pretrained.load import load_model
from bert_jax.testing.models import small_model

TEXTS = ["a net", "the sea", "the old man", "man by the sea", "mends a net"]
COLUMNS = ["columns", "--text", "text", "--label", "label"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    # "yes" before "no": a file's labels are sorted, so their order differs from the model's.
    head = SequenceClassificationHead(labels=("yes", "no"))
    export(small_model(folder / "vocabulary", head=head, initializer_range=0.3), folder / "model")
    return str(folder / "model")


def write_table(file: Path, labels: list[str]) -> str:
    rows = [f"{text},{label}" for text, label in zip(TEXTS, labels, strict=True)]
    file.write_text("\n".join(["text,label", *rows]) + "\n")
    return str(file)


def test_metrics_of_each_labeled_split(exported, tmp_path, capsys):
    labels = {"dev": ["no", "yes", "no", "no", "no"], "test": ["yes", "yes", "no", "yes", "yes"]}
    files = [
        f"--{split}={write_table((tmp_path / split).with_suffix('.csv'), split_labels)}"
        for split, split_labels in labels.items()
    ]
    assert main(["evaluate", exported, *COLUMNS, *files]) == 0
    results = json.loads(capsys.readouterr().out)
    predictions = np.array([row["label"] for row in Predictor(load_model(exported))(TEXTS)])
    for split in labels:
        assert np.isclose(results[split]["accuracy"], np.mean(predictions == labels[split]))
    assert main(["evaluate", exported, *COLUMNS, *files, "--split", "test"]) == 0
    assert json.loads(capsys.readouterr().out) == {"test": results["test"]}


@pytest.mark.parametrize(
    ("labels", "flags", "code", "message"),
    [
        (["no", "perhaps", "no", "no", "yes"], [], 1, "label 'perhaps' .* labels are yes, no"),
        (["no", "yes", "no", "no", ""], ["--split=test"], 1, "1 of 5 examples .* have no label"),
        (["no", "yes", "no", "no", "no"], ["--split=dev"], 2, "no split 'dev'; expected .* test"),
        (["1", "0.5", "3", "4", "2"], [], 2, "a task of regression, .* for classification"),
    ],
)
def test_data_that_does_not_fit_the_model(labels, flags, code, message, exported, tmp_path, capsys):
    test = write_table(tmp_path / "test.csv", labels)
    assert main(["evaluate", exported, *COLUMNS, "--test", test, *flags]) == code
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert re.search(message, error), error
