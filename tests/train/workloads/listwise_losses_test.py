"""Covers `bert-jax finetune --kind ranking --loss ...`, from a file to the metrics of a run.

The sources are bert_jax/tasks/listwise_losses.py and bert_jax/tasks/ranking.py.
"""

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.models import small_model
from bert_jax.export.export import export
from bert_jax.predict.reranker import Reranker
from bert_jax.pretrained.load import load_encoder
from bert_jax.runs.metrics import read_metrics
from tests.helpers.one_device import one_device_mesh

PLAIN = ("the", "a", "and", "by", "old")
TOPICS = ("sea", "man", "net", "sings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Returns a folder with a model, and queries with 2 to 4 texts, one about the sea."""
    folder = tmp_path_factory.mktemp("listwise")
    export(small_model(folder / "words", num_hidden_layers=1), folder / "model")
    draw = random.Random(0)
    for name, size in (("train", 40), ("dev", 12)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("query", "text", "relevant"))
            for number in range(size):
                query = " ".join(draw.choices(PLAIN, k=6))
                topics = draw.sample(TOPICS, 2 + number % 3)
                for topic in topics if "sea" in topics else [*topics[1:], "sea"]:
                    text = " ".join((*draw.choices(PLAIN, k=3), topic))
                    writer.writerow((query, text, float(topic == "sea")))
    return folder


def train(folder: Path, run: str, *flags: str, data: str = "train") -> int:
    with one_device_mesh():
        return main(
            [
                *("finetune", "columns", "--model", f"{folder}/model", "--run", f"{folder}/{run}"),
                *("--train", f"{folder}/{data}.csv", "--dev", f"{folder}/dev.csv"),
                *("--text", "query", "--text-pair", "text", "--label", "relevant"),
                *("--kind", "ranking", "--batch-size", "16", "--epochs", "6", "--max-length", "16"),
                *("--learning-rate", "5e-3", *flags),
                *("--set", "data.bucket_lengths=[]", "train.logging.log_every=1"),
            ]
        )


def test_run_learns_to_rank(folder):
    assert train(folder, "lambda", "--loss", "lambdaloss") == 0
    records = read_metrics(folder / "lambda/metrics.jsonl")
    accuracies = [each["pair_accuracy"] for each in records if "pair_accuracy" in each]
    assert len(accuracies) == 6 * 10 and np.mean(accuracies[-5:]) > 0.9
    final = json.loads((folder / "lambda/evaluation.json").read_text())["dev"]
    assert final["ndcg"] == pytest.approx(max(r["ndcg"] for r in records if "ndcg" in r))
    assert final["ndcg"] > 0.9
    rerank = Reranker(load_encoder(folder / "lambda"))
    assert rerank.rank("the old and", ["a man", "by the sea", "a net"])[0].position == 1


@pytest.mark.parametrize(
    ("rows", "flags", "message"),
    [
        ("q,a,1\nq,b,0\np,a,1", (), "1 training text has the query 'p', but --loss compares"),
        ("q,a,1\n" * 17, (), "17 training texts have the query 'q'"),
        ("q,a,NaN\nq,b,0", (), "label"),
        ("q,a,1\nq,b,0", ("--label", "missing"), "there is no column 'missing'"),
        ("q,a,1\nq,b,0", ("--truncation", "windows"), "expected another --truncation"),
        ("q,a,1\nq,b,0", ("--kind", "regression"), "expected that of a reranker"),
    ],
)
def test_errors_of_the_command_line(folder, capsys, rows, flags, message):
    (folder / "wrong.csv").write_text(f"query,text,relevant\n{rows}\n")
    assert train(folder, "errors", "--loss", "ranknet", *flags, data="wrong") in (1, 2)
    assert message in capsys.readouterr().err
    assert not (folder / "errors").exists()
