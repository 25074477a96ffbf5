"""Covers bert_jax/apps/studies/cli/glue.py: an interrupted benchmark ends with the same results."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.apps.testing.models import (
    SPECIAL_TOKENS,
    random_parameters,
    small_config,
    word_tokenizer,
)
from bert_jax.export.export import export
from bert_jax.interop.huggingface import ImportedModel
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.pretrained.load import build_model
from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED

ROOT = str(Path(__file__).parents[2])
ROWS = {"train": 96, "dev": 40, "test": 20}
EPOCHS = 6  # of 6 steps each
FLAGS = ("--tasks", "rte", "wnli", "--num-seeds", "1", "--epochs", str(EPOCHS), "--zip")


@pytest.fixture(scope="module")
def made(shared, tmp_path_factory) -> Path:
    """Writes glue/ with the first examples of RTE and WNLI, and a small BERT in model/."""
    folder, words = tmp_path_factory.mktemp("made"), set()
    for task in ("RTE", "WNLI"):
        (folder / "glue" / task).mkdir(parents=True)
        for split, count in ROWS.items():
            lines = (shared / "glue" / task / f"{split}.tsv").read_text("utf-8").splitlines()
            text = "\n".join(lines[: count + 1]) + "\n"
            (folder / "glue" / task / f"{split}.tsv").write_text(text, "utf-8")
            words.update(word for word in text.lower().split() if word.isalpha())
    known = word_tokenizer(folder / "vocabulary", sorted(words))
    config = small_config(
        vocab_size=len(SPECIAL_TOKENS) + len(words),
        positions=LearnedPositions(max_position_embeddings=64),
    )
    model = build_model(
        ImportedModel(random_parameters(config), config, known, None), "a small model"
    )
    export(model, folder / "model")
    return folder


def start(made: Path, output: Path) -> subprocess.Popen:
    """Starts the command in its own process group."""
    flags = ["--glue-dir", str(made / "glue"), "--model", str(made / "model")]
    flags += ["--output", str(output), "--learning-rate", "1e-3", "--batch-size", "16", *FLAGS]
    return subprocess.Popen(
        [sys.executable, "-m", "bert_jax", "glue", *flags],
        env={**os.environ, "PYTHONPATH": ROOT, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def finish(process: subprocess.Popen, expect: int) -> str:
    _, output = process.communicate(timeout=600)
    assert process.returncode == expect, output[-3000:]
    return output


def await_training(run: Path, steps: int = 1) -> None:
    """Waits until metrics.jsonl of a run has a number of lines, one per step and evaluation."""
    log = run / "metrics.jsonl"
    for _ in range(3000):
        if log.exists() and log.read_bytes().count(b"\n") >= steps:
            return
        time.sleep(0.1)
    raise AssertionError(f"{run} has not begun to train")


def content(output: Path) -> dict[str, str | bytes]:
    """Returns everything that a user reads, and the losses."""
    files = [output / "results.json", output / "table.md", output / "submission.zip"]
    found: dict[str, str | bytes] = {file.name: file.read_bytes() for file in files}
    for run in sorted(output.glob("*/seed-*")):
        for file in sorted((run / "predictions").iterdir()):
            found[f"{run.parent.name}/{run.name}/{file.name}"] = file.read_bytes()
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        found[f"{run.parent.name}/{run.name}/losses"] = str([row.get("loss") for row in rows])
    return found


@pytest.mark.slow
def test_interrupted_and_killed_benchmark_has_the_same_results(made, tmp_path):
    finish(start(made, tmp_path / "straight"), EXIT_DONE)

    output = tmp_path / "troubled"
    stopped = start(made, output)
    await_training(output / "rte/seed-0")
    stopped.send_signal(signal.SIGTERM)
    assert "run the same command to resume" in finish(stopped, EXIT_PREEMPTED)

    killed = start(made, output)
    await_training(output / "rte/seed-0", steps=15)
    os.killpg(killed.pid, signal.SIGKILL)
    finish(killed, -signal.SIGKILL)

    # Only the command is killed here: its current run continues, and the next command waits for it.
    alone = start(made, output)
    await_training(output / "wnli/seed-0")
    alone.kill()
    finish(alone, -signal.SIGKILL)

    assert "runs were finished before" in finish(start(made, output), EXIT_DONE)
    expected, found = content(tmp_path / "straight"), content(output)
    assert found.keys() == expected.keys() and len(found) == 3 + 2 * 3
    assert [name for name in expected if found[name] != expected[name]] == []
    results = json.loads(found["results.json"])
    assert set(results["tasks"]) == {"rte", "wnli"} and not results["failed"]
