"""Tests a launch with real processes: four hosts train together and are preempted.

Covers tpu/smoke_16.sh, tpu/launcher.py and tpu/worker.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.tpu.cloud import ROOT, FakeCloud

RUN = "runs/smoke"


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
def test_smoke_recipe_survives_a_preemption(cloud: FakeCloud, tmp_path: Path):
    corpus(tmp_path, cloud)
    when = {"preempt_when": f"gs://my-bucket/{RUN}/run/checkpoints/3", "notice": True}
    cloud.script(slices={"bert-smoke-*-1": when})
    command = f"export BERT_JAX_LOCAL_DEVICES=1; source {ROOT}/tests/helpers/tpu/fake_cloud.sh;"
    environment = {
        **os.environ,
        "BUCKET": "gs://my-bucket",
        "STEPS": "8",
        "BATCH": "16",
        "MAX_HOURS": "100",
        "BERT_TPU_PYTHON": sys.executable,
    }
    done = subprocess.run(
        ["bash", "-c", f"{command} exec {ROOT}/tpu/smoke_16.sh --yes"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    folder = cloud.folder / "gcs/my-bucket" / RUN
    assert done.returncode == 0, done.stderr[-6000:]
    assert not cloud.slices()
    attempts = sorted(path.name for path in (folder / "attempts").iterdir())
    assert attempts[:2] == ["1", "2"]
    assert "(code 75)" in done.stderr
    for host in range(4):
        assert (folder / f"attempts/{attempts[-1]}/host-{host}.exit-0").exists()
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 8
    exported = tmp_path / "exported"
    words = ["export", str(folder / "run"), "--output", str(exported)]
    subprocess.run([sys.executable, "-m", "bert_jax", *words], check=True, capture_output=True)
    assert (exported / "model.safetensors").exists()
