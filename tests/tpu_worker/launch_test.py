"""Tests `tpu/tpuctl launch` end to end with a fake cloud, real agents and real trainers.

Slices are preempted during training at random times, with and without a notice; the results in the
bucket equal those of an undisturbed run. Covers tpu/*.sh, tpu/launcher/ and tpu/worker/.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_jax.apps.simulate.attempt import free_port
from bert_jax.apps.testing.models import small_model
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.export.export import export
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.params import paths
from bert_jax.pretrained.load import load_model
from tpu import bucket_layout

ROOT = Path(__file__).parents[2]
TASKS = ("rte", "wnli", "mrpc")

pytestmark = pytest.mark.slow


class Cloud:
    """Provides a fake cloud with data in gs://bucket/data."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.bucket = folder / "gcs" / "bucket"
        self.bucket.mkdir(parents=True)

    def put(self, name: str, source: Path) -> None:
        """Copies a folder into the bucket."""
        shutil.copytree(source, self.bucket / name)

    def preempt(self, run: str, draw: random.Random, attempts: int, first: float) -> None:
        """Scripts preemptions of attempts of a run, every second one without a notice."""
        rows = {
            f"{bucket_layout.slice_name_prefix(f'gs://bucket/runs/{run}')}-{attempt}": {
                "preempt_after": draw.uniform(first, 2 * first),
                "notice": attempt % 2 == 0,
                "notice_seconds": 60,
            }
            for attempt in range(attempts)
        }
        (self.folder / "script.json").write_text(json.dumps({"slices": rows}))

    def launch(self, run: str, *words: str, **recipe: str) -> Path:
        """Runs a recipe with these variables; returns the run folder in the bucket."""
        name, *flags = words
        done = subprocess.run(
            # The hosts of all pods are this machine, so each pod needs its own coordinator port.
            [str(ROOT / "tpu" / name), "--yes", f"--coordinator-port={free_port()}", *flags],
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("BERT_TPU_")},
                "FAKE_CLOUD": str(self.folder),
                "PATH": os.pathsep.join(
                    [
                        str(ROOT / "tests/helpers/tpu/bin"),
                        str(Path(sys.executable).parent),
                        "/usr/bin:/bin",
                    ]
                ),
                "BERT_TPU_PYTHON": sys.executable,
                "BERT_TPU_HEARTBEAT": "8",
                "BERT_TPU_RENDEZVOUS": "120",
                "BERT_TPU_TIME_SCALE": "4",
                "BERT_JAX_LOCAL_DEVICES": "1",
                "BERT_JAX_RENDEZVOUS_SECONDS": "120",
                "JAX_PLATFORMS": "cpu",
                # A zone that preempts a slice at once is blocked for a while.
                "BERT_TPU_ZONES": "us-central1-b,us-central1-a,us-central1-c",
                "BUCKET": "gs://bucket",
                "RUN_ID": run,
                "MAX_HOURS": "12",
                **recipe,
            },
            capture_output=True,
            text=True,
            timeout=3600,
        )
        folder = self.bucket / "runs" / run
        assert done.returncode == 0, done.stdout + done.stderr + self.last_logs(folder)
        assert (folder / "DONE.json").exists()
        return folder

    def attempts(self, run: Path) -> int:
        """Returns the number of attempts of the run."""
        return len(list((run / "attempts").iterdir()))

    def last_logs(self, run: Path) -> str:
        """Returns the last part of all logs."""
        return "\n".join(f"== {f}\n{f.read_text()[-2500:]}" for f in run.glob("**/host-*.log"))


@pytest.fixture
def cloud(tmp_path) -> Cloud:
    return Cloud(tmp_path / "cloud")


@pytest.fixture
def glue(shared, cloud, tmp_path) -> dict[str, str]:
    """Uploads RTE, WNLI, MRPC and a tiny encoder to where the recipes expect them."""
    for name in TASKS:
        cloud.put(f"data/glue/{name.upper()}", shared / "glue" / name.upper())
    export(
        small_model(
            tmp_path / "vocabulary", positions=LearnedPositions(max_position_embeddings=40)
        ),
        tmp_path / "m",
    )
    cloud.put("models/bert", tmp_path / "m")
    return {"TASKS": ",".join(TASKS), "BATCH": "64"}


def test_preempted_pretraining_is_bit_identical(cloud, tmp_path):
    cloud.put("data/corpus/train", prepare_corpus(tmp_path / "corpus"))
    recipe = {"STEPS": "20", "BATCH": "32"}
    calm = cloud.launch("calm", "smoke_16.sh", **recipe)
    cloud.preempt("rough", random.Random(1), attempts=2, first=50)
    rough = cloud.launch("rough", "smoke_16.sh", **recipe)
    assert (
        cloud.attempts(calm) == 1 and cloud.attempts(rough) > 1
    )  # on a fast machine the run may end first
    one, other = (paths.flatten(load_model(each / "run").params) for each in (calm, rough))
    for path, value in one.items():
        np.testing.assert_array_equal(value, other[path], err_msg=path)


def test_preempted_sharded_glue_writes_the_same_table(cloud, glue, tmp_path):
    plain = tmp_path / "plain"  # the recipe's command in one process, with the hosts' paths
    (plain / "data").mkdir(parents=True)
    (plain / "data/glue").symlink_to(cloud.bucket / "data/glue")
    (plain / "data/model").symlink_to(cloud.bucket / "models/bert")
    command = ["glue", "--glue-dir", "data/glue", "--model", "data/model", "--num-seeds", "5"]
    subprocess.run(
        [sys.executable, "-m", "bert_jax", *command, "--zip", "--output", "run"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        cwd=plain,
        check=True,
        timeout=3600,
    )
    cloud.preempt("lanes", random.Random(2), attempts=2, first=120)
    run = cloud.launch("lanes", "finetune_glue_sharded_16.sh", **glue)
    assert cloud.attempts(run) > 1
    results = json.loads((run / "run/results.json").read_text())
    assert results["failed"] == {} and results["tasks"].keys() == set(TASKS)
    for file in ("results.json", "table.md", "table.html"):
        assert (run / "run" / file).read_bytes() == (plain / "run" / file).read_bytes()


def test_preempted_multi_task_glue_has_the_same_evaluation(cloud, glue):
    calm = cloud.launch("calm", "finetune_glue_multi_task_16.sh", **glue)
    cloud.preempt("rough", random.Random(3), attempts=2, first=60)
    rough = cloud.launch("rough", "finetune_glue_multi_task_16.sh", **glue)
    assert (
        cloud.attempts(calm) == 1 and cloud.attempts(rough) > 1
    )  # on a fast machine the run may end first
    for file in ("evaluation.json", "analysis.json", "predictions/rte/dev.jsonl"):
        assert (calm / "run" / file).read_bytes() == (rough / "run" / file).read_bytes()
