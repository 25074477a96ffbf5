"""Tests `bert-jax evaluate` on labeled tables: metrics, order of labels, and error messages."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main, parse_command
from bert_jax.apps.testing.models import small_model
from bert_jax.cli import evaluate
from bert_jax.export.export import export
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.predict.predictor import Predictor
from bert_jax.pretrained.load import load_encoder

TEXTS = ["the sea", "a net", "the old man", "a man by the sea", "an old man"]
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
    predictions = np.array([row["label"] for row in Predictor(load_encoder(exported))(TEXTS)])
    for split in labels:
        assert results[split]["examples"] == len(TEXTS)
        assert np.isclose(results[split]["accuracy"], np.mean(predictions == labels[split]))
        assert all(value == round(value, 6) for value in results[split].values())
    assert main(["evaluate", exported, *COLUMNS, *files, "--split", "test"]) == 0
    assert json.loads(capsys.readouterr().out) == {"test": results["test"]}


@pytest.mark.parametrize(
    ("labels", "flags", "code", "message"),
    [
        (
            ["no", "perhaps", "no", "maybe", "yes"],
            [],
            1,
            "2 of 5 examples of the split test have labels .* does not have: 'maybe', 'perhaps'; "
            "its labels are 'yes', 'no'; correct the labels",
        ),
        (["no", "yes", "no", "no", ""], ["--split=test"], 1, "1 of 5 examples .* have no label"),
        (["no", "yes", "no", "no", "no"], ["--split=dev"], 2, "no split 'dev'; expected .* test"),
        (["1", "0.5", "3", "4", "2"], [], 2, "a task of regression, .* --kind classification"),
        ([""] * 5, [], 1, "no example of the split test has a label, so .* `bert-jax predict`"),
    ],
)
def test_data_that_does_not_fit_the_model(labels, flags, code, message, exported, tmp_path, capsys):
    test = write_table(tmp_path / "test.csv", labels)
    assert main(["evaluate", exported, *COLUMNS, "--test", test, *flags]) == code
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert re.search(message, error), error


def test_notes_on_the_data_are_logged(exported, tmp_path, capsys):
    train, test = (tmp_path / f"{name}.csv" for name in ("train", "test"))
    write_table(train, ["no", "yes", "no", "yes", ""])
    write_table(test, ["no", "yes", "no", "no", "yes"])
    flags = [exported, *COLUMNS, "--train", str(train)]
    assert main(["evaluate", *flags, "--test", str(test)]) == 0
    captured = capsys.readouterr()
    assert set(json.loads(captured.out)) == {"test"} and "without a label" in captured.err
    assert main(["evaluate", *flags]) == 2
    assert "--dev or --test, or evaluate it with --split train" in capsys.readouterr().err


def test_metrics_of_examples_that_are_in_the_pretraining_corpus(exported, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    texts = [*TEXTS, "the old man of the sea cast a net from the boat near the old harbor wall"]
    labels = ["no", "yes", "no", "no", "no", "yes"]
    lines = [f"{text},{label}" for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "dev.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    (tmp_path / "corpus.txt").write_text(f"It is said that {texts[-1]}, and so it was.")
    folder = str(tmp_path / "out")
    arguments = [f"files={tmp_path}/corpus.txt", f"items={tmp_path}/dev.csv"]
    command = ["curate", "contamination", "--output", folder, "--workers", "1", "--arg"]
    assert main([*command, *arguments]) == 0
    capsys.readouterr()
    files = ["--dev", str(tmp_path / "dev.csv")]
    assert main(["evaluate", exported, *COLUMNS, *files, "--contamination", folder]) == 0
    results = json.loads(capsys.readouterr().out)["dev"]
    # The other texts have fewer than 8 words: whether they are in the corpus cannot be said.
    short, found = (results["by_contamination"][group] for group in ("not_searchable", "found"))
    assert (short["examples"], found["examples"]) == (5, 1)
    correct = short["accuracy"] * 5 + found["accuracy"]
    assert np.isclose(results["accuracy"], correct / 6)
    low, high = short["interval"]
    assert low <= short["accuracy"] <= high
    assert main(["evaluate", exported, *COLUMNS, *files, "--contamination", exported]) == 1
    assert "contamination-items.parquet: no such file; `bert-jax cu" in capsys.readouterr().err


def test_evaluation_on_the_training_file_is_reported(tmp_path, caplog):
    file = write_table(tmp_path / "train.csv", ["no", "yes", "no", "no", "no"])
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    config = {"config": {"data": {"task": {"train": file}}}}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    command = ["evaluate", "run", "--dev", file, "--text", "text", "--label", "label"]
    evaluate.warn_of_training_file(parse_command(command), tmp_path / "run")
    assert f"--dev {file} is the file on which run was trained" in caplog.text
