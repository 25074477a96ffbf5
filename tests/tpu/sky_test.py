"""Tests the SkyPilot task files: SkyPilot itself reads them, and they fit the table of slices.

SkyPilot needs other versions of protobuf and click than this project, so it lives in an environment
of its own: BERT_JAX_SKY_PYTHON names the Python of that environment. Covers tpu/sky/*.yaml.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bert_jax.parallel.tpu_slices import find_slice
from tests.helpers.tpu.cloud import ROOT
from tpu.job import EXIT_CODES

FILES = sorted((ROOT / "tpu/sky").glob("*.yaml"))
# Prints what SkyPilot has understood, as JSON.
VALIDATE = """
import json, sys, sky, yaml
task = sky.Task.from_yaml_config(
    yaml.safe_load(open(sys.argv[1])),
    env_overrides=[("BUCKET", "gs://my-bucket"), ("RECIPE", "smoke_16")],
)
with sky.Dag() as dag:
    dag.add(task)
dag.validate(skip_file_mounts=True)
(resources,) = task.resources
print(json.dumps({
    "cloud": str(resources.cloud), "accelerators": resources.accelerators,
    "accelerator_args": resources.accelerator_args, "use_spot": resources.use_spot,
    "codes": resources.job_recovery["recover_on_exit_codes"], "envs": task.envs,
    "max_hourly_cost": resources.max_hourly_cost,
}))
"""


def parse(file: Path) -> dict[str, Any]:
    """Returns the content of a task file."""
    return yaml.safe_load(file.read_text())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_task_files_fit_the_table_of_slices(file: Path):
    task = parse(file)
    resources, slice_type = task["resources"], find_slice(task["envs"]["SLICE"])
    generation = slice_type.generation
    assert file.stem.endswith(slice_type.name.replace("-", "_"))
    cap, price = resources["max_hourly_cost"], slice_type.usd_per_hour(spot=True)
    assert price is not None and price < cap < 1.5 * price
    if resources["infra"] == "gcp":
        assert resources["accelerators"] == f"tpu-{slice_type.accelerator_type}"
        runtime = resources["accelerator_args"]["runtime_version"]
        assert runtime == generation.runtime_version


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_task_files_restart_after_the_launchers_exit_codes(file: Path):
    """Tests that SkyPilot restarts after the same codes as the launcher's restart loop."""
    final = {0, 1, 2, 78}  # done, or the same command would fail again
    codes = parse(file)["resources"]["job_recovery"]["recover_on_exit_codes"]
    assert set(codes) == set(EXIT_CODES) - final


def validate(file: Path) -> "subprocess.CompletedProcess[str]":
    """Lets SkyPilot read a task file; skips the test where it is not installed."""
    python = os.environ.get("BERT_JAX_SKY_PYTHON", sys.executable)
    if python == sys.executable and importlib.util.find_spec("sky") is None:
        pytest.skip(
            "SkyPilot is not installed: pip install 'skypilot[gcp,kubernetes]' in an environment "
            "of its own, and set BERT_JAX_SKY_PYTHON"
        )
    # Not PYTHONPATH: SkyPilot must not import this project's packages.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", VALIDATE, str(file)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_skypilot_accepts_the_task_files(file: Path):
    done = validate(file)
    assert done.returncode == 0, done.stderr[-2000:]
    understood, task = json.loads(done.stdout.splitlines()[-1]), parse(file)
    resources = task["resources"]
    assert understood["use_spot"] is True
    assert understood["max_hourly_cost"] == resources["max_hourly_cost"]
    assert understood["codes"] == resources["job_recovery"]["recover_on_exit_codes"]
    assert [*understood["accelerators"]] == [resources["accelerators"].split(":")[0]]
    assert understood["envs"] == {**task["envs"], "BUCKET": "gs://my-bucket", "RECIPE": "smoke_16"}


def test_skypilot_rejects_a_misspelled_field(tmp_path: Path):
    file = tmp_path / "task.yaml"
    file.write_text(FILES[0].read_text().replace("use_spot", "use_spots"))
    done = validate(file)
    assert done.returncode != 0 and "use_spots" in done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_variables_of_the_launch_scripts_are_declared(file: Path):
    """SkyPilot rejects `--env NAME=...` for names that the task file does not declare."""
    scripts = "\n".join(path.read_text() for path in (ROOT / "tpu").glob("*.sh"))
    declared = set(parse(file)["envs"])
    for name in declared - {"RECIPE", "BERT_TPU_VERB"}:
        assert f"\n{name}=" in scripts
    assert parse(file)["envs"]["BERT_TPU_VERB"] == "work"
