"""Tests that predicting and evaluating with a finished run reproduce the dev results of the run.

Sources: bert_jax/predict/, bert_jax/cli/predict.py.
"""

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.models import WORDS, small_model
from bert_jax.config.config_lib import override
from bert_jax.config.labeled_data import (
    Columns,
    Conll,
    HeadTruncation,
    JointWindows,
    Squad,
    Swag,
    TaskConfig,
    Windows,
)
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.predict.predictor import Predictor
from bert_jax.pretrained.load import load_encoder
from bert_jax.train.presets import fine_tuning_experiment
from bert_jax.train.run import run

PLAIN = [word for word in WORDS if not word.startswith("##")]


def sentence(draw: random.Random, max_words: int = 24) -> list[str]:
    return draw.choices(PLAIN, k=draw.randint(3, max_words))


def write_table(file: Path, header: list[str], rows: list[list[Any]]) -> str:
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *rows])
    return str(file)


def columns(folder: Path, draw: random.Random) -> TaskConfig:
    files = {}
    for split in ("train", "dev"):
        texts = [sentence(draw) for _ in range(24)]
        rows = [[" ".join(text), ("no", "yes")["sea" in text]] for text in texts]
        files[split] = write_table(folder / f"{split}.csv", ["text", "label"], rows)
    return Columns(**files, text="text", label="label")


def conll(folder: Path, draw: random.Random) -> TaskConfig:
    for split in ("train", "dev"):
        sentences = [sentence(draw) for _ in range(24)]
        lines = ["\n".join(f"{w} {'B-X' if w == 'net' else 'O'}" for w in s) for s in sentences]
        (folder / f"{split}.conll").write_text("\n\n".join(lines) + "\n")
    return Conll(train=str(folder / "train.conll"), dev=str(folder / "dev.conll"))


def squad(folder: Path, draw: random.Random) -> TaskConfig:
    for split in ("train", "dev"):
        questions = []
        for number in range(16):
            words = sentence(draw)
            answers = [{"text": words[0], "answer_start": 0}] if number % 2 else []
            qa = {"id": str(number), "question": "the net", "answers": answers}
            qa["is_impossible"] = not answers
            questions.append({"context": " ".join(words), "qas": [qa]})
        content = {"version": "v2.0", "data": [{"title": "x", "paragraphs": questions}]}
        (folder / f"{split}.json").write_text(json.dumps(content))
    return Squad(train=str(folder / "train.json"), dev=str(folder / "dev.json"), version="2.0")


def swag(folder: Path, draw: random.Random) -> TaskConfig:
    header = ["sent1", "sent2", "ending0", "ending1", "ending2", "label"]
    files = {}
    for split in ("train", "dev"):
        rows = [
            [*(" ".join(sentence(draw, 6)) for _ in range(5)), draw.randrange(3)] for _ in range(16)
        ]
        files[split] = write_table(folder / f"{split}.csv", header, rows)
    return Swag(**files)


TASKS = {
    "columns": columns,
    "windows": columns,
    "hierarchical": columns,
    "conll": conll,
    "squad": squad,
    "swag": swag,
}
TRUNCATIONS = {"windows": Windows(pooling="max"), "hierarchical": JointWindows(num_windows=2)}


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    "name",
    # predictor_test.py predicts answers, tags and multiple choice, and with windows of long texts.
    [pytest.param(x, marks=[] if x == "columns" else [pytest.mark.slow]) for x in TASKS],
)
def test_run_folder_reproduces_its_saved_predictions(name, tmp_path, capsys):
    model = small_model(
        tmp_path / "vocabulary",
        num_hidden_layers=1,
        positions=LearnedPositions(max_position_embeddings=32),
    )
    export(model, tmp_path / "start")
    task = TASKS[name](tmp_path, random.Random(0))
    experiment = fine_tuning_experiment(
        task,
        str(tmp_path / "start"),
        epochs=2,
        batch_size=8,
        learning_rate=1e-2,
        max_length=18,
        truncation=TRUNCATIONS.get(name, HeadTruncation()),
    )
    buckets = [8] if name == "columns" else []  # each kind takes compilations
    experiment = override(experiment, [f"data.bucket_lengths={buckets}", "data.window_overlap=4"])
    assert run(experiment, tmp_path / "run") == 0
    capsys.readouterr()

    expected = read_lines(tmp_path / "run/predictions/dev.jsonl")
    loaded = load_encoder(tmp_path / "run")
    assert loaded.run is not None and loaded.run.step == loaded.run.info["best"]["step"]
    predict = Predictor(loaded)
    assert predict.max_length == 18
    assert_same(predict(load_task(task).splits["dev"]), expected)

    metrics = json.loads((tmp_path / "run/evaluation.json").read_text())["dev"]
    assert predict.evaluate(load_task(task), "dev") == pytest.approx(metrics, abs=1e-5)

    dev = next(iter(tmp_path.glob("dev.*")))
    output = tmp_path / "said.jsonl"
    arguments = ["predict", str(tmp_path / "run"), "--file", str(dev)]
    assert main([*arguments, "--output", str(output)]) == 0
    assert_same(read_lines(output), expected)
    assert capsys.readouterr().out == "" and not list(tmp_path.glob("*.partial"))
    if name == "hierarchical":
        with pytest.raises(UserError, match="has a hierarchical head, for which Hugging Face has"):
            export(loaded, tmp_path / "exported")
        with pytest.raises(ConfigError, match="reads up to 2 windows of a text together; leave"):
            Predictor(loaded, truncation="tail")
    if name == "columns":
        with pytest.raises(UserError, match=r"trained on single texts, but the input 'the sea' is"):
            predict("the sea", "a net")


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def assert_same(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(rows) == len(expected)
    for row, left in zip(rows, expected, strict=True):
        assert list(row) == list(left)
        for key, value in left.items():
            close = isinstance(value, float) or key == "probabilities"
            assert row[key] == (pytest.approx(value, abs=1e-5) if close else value)
