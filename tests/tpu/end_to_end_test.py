"""Tests a launch with real processes: four hosts train together and are preempted.

Covers tpu/cli.py, tpu/launcher.py and tpu/worker.py.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.apps.testing.models import small_model
from bert_jax.export.export import export
from bert_jax.models.layers.config import LearnedPositions
from tests.helpers.tpu.cloud import ROOT, FakeCloud

RUN = "runs/smoke"
STEPS = 300


def corpus(folder: Path, cloud: FakeCloud) -> None:
    """Prepares this repository's documentation as a corpus in the fake bucket."""
    prepared = cloud.folder / "gcs/my-bucket/data/corpus/train"
    verbs = [
        ["tokenizer", "train", "--vocab-size", "2000", "--output", str(folder / "vocabulary")],
        [
            "prepare",
            "--tokenizer",
            str(folder / "vocabulary"),
            "--output",
            str(prepared),
            "--files",
        ],
    ]
    for words in verbs:
        subprocess.run([sys.executable, "-m", "bert_jax", *words, str(ROOT / "docs/*.md")],
                       check=True, capture_output=True, cwd=ROOT)  # fmt: skip


@pytest.mark.slow
def test_training_survives_a_preemption(cloud: FakeCloud, tmp_path: Path):
    """Tests a slice that is gone without a notice; the rest takes long enough not to be done."""
    corpus(tmp_path, cloud)
    lost = {"preempt_when": f"gs://my-bucket/{RUN}/run/checkpoints/3"}
    cloud.script(slices={"bert-smoke-*-1": lost})
    words = ("--slice", "v6e-16", "--bucket", "gs://my-bucket", "--run-id", "smoke", "--yes")
    job = (
        "pretrain", "configs/pretrain/bert.py", "--arg", "size=tiny", f"steps={STEPS}",
        "batch_size=16", "corpus=@data/corpus/train", "--set", "train.checkpoints.save_every=3",
    )  # fmt: skip
    data = ("--data", "corpus=gs://my-bucket/data/corpus")
    command = shlex.join(["tpu/tpuctl", "launch", *words, *data, "--", *job])
    done = subprocess.run(
        ["bash", "-c", f"source tests/helpers/tpu/fake_cloud.sh; {command}"],
        cwd=ROOT,
        env={**os.environ, "BERT_JAX_LOCAL_DEVICES": "1", "BERT_TPU_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    folder = cloud.folder / "gcs/my-bucket" / RUN
    assert done.returncode == 0, done.stderr[-6000:]
    assert not cloud.slices() and "deleting the slice: the slice is gone" in done.stderr
    attempts = {path.name for path in (folder / "attempts").iterdir()}
    assert attempts == {"1", "2"}
    for host in range(4):
        assert (folder / f"attempts/2/host-{host}.exit-0").exists()
    log = (folder / "attempts/2/host-0.log").read_text()
    resumed_after = int(re.findall(r"begins after step (\d+)", log)[0])
    assert 0 < resumed_after < STEPS and resumed_after % 3 == 0
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in rows if "loss" in row]
    assert steps == sorted(set(steps)) and rows[-1]["step"] == STEPS
    exported = tmp_path / "exported"
    words = ("export", str(folder / "run"), "--output", str(exported))
    subprocess.run([sys.executable, "-m", "bert_jax", *words], check=True, capture_output=True)
    assert (exported / "model.safetensors").exists()


@pytest.mark.slow
def test_sharded_glue_writes_the_table_of_a_plain_run(cloud: FakeCloud, tmp_path: Path):
    bucket, plain = cloud.folder / "gcs/my-bucket", tmp_path / "plain"
    for split, rows in (("train", 40), ("dev", 12), ("test", 8)):
        file = bucket / f"data/glue/WNLI/{split}.tsv"
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{i}\tIt rains {i}.\tThe street is wet.\t{i % 2}" for i in range(rows)]
        lines = ["index\tsentence1\tsentence2\tlabel", *lines]
        if split == "test":  # has no labels
            lines = [line.rpartition("\t")[0] for line in lines]
        file.write_text("\n".join(lines) + "\n")
    positions = LearnedPositions(max_position_embeddings=40)
    export(small_model(tmp_path / "vocabulary", positions=positions), bucket / "models/bert")
    # The job of tpu/finetune_glue_sharded_16.sh, for one task and one host.
    job = ("glue", "--glue-dir", "@data/glue", "--model", "@data/model", "--num-seeds", "3")
    job = (*job, "--tasks", "wnli", "--max-length", "32", "--zip")
    words = ("--slice", "v6e-4", "--bucket", "gs://my-bucket", "--run-id", "glue", "--yes")
    data = ("--data", "glue=gs://my-bucket/data/glue", "--data", "model=gs://my-bucket/models/bert")
    environment = {**os.environ, "BERT_JAX_LOCAL_DEVICES": "1", "BERT_TPU_PYTHON": sys.executable}
    command = shlex.join(["tpu/tpuctl", "launch", *words, *data, "--", *job])
    done = subprocess.run(
        ["bash", "-c", f"source tests/helpers/tpu/fake_cloud.sh; {command}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    run = bucket / "runs/glue"
    assert done.returncode == 0, done.stderr[-6000:]
    (plain / "data").mkdir(parents=True)
    (plain / "data/glue").symlink_to(bucket / "data/glue")
    (plain / "data/model").symlink_to(bucket / "models/bert")
    words = [word.replace("@data/", "data/") for word in job]
    subprocess.run(
        [sys.executable, "-m", "bert_jax", *words, "--output", "run"],
        env={**environment, "PYTHONPATH": str(ROOT)},
        cwd=plain,
        check=True,
        capture_output=True,
    )
    assert json.loads((run / "run/results.json").read_text())["failed"] == {}
    for file in ("results.json", "table.md", "table.html"):
        assert (run / "run" / file).read_bytes() == (plain / "run" / file).read_bytes()
    assert "running" in (run / "attempts/1/host-0.log").read_text()
