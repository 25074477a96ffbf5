"""Tests the gcloud commands of every launcher command, for each generation and backend.

    BERT_TPU_GOLDENS=write pytest tests/tpu/golden_test.py      writes the golden files

The lines are the output of `--dry-run`; a changed line means that other commands would be run.
Covers tpu/launcher/cloud/tpu_api.py, gce.py, ssh_commands.py and dry_run.py.
"""

import os
import shlex
from pathlib import Path

import pytest

from bert_jax.parallel.tpu_slices import all_slices
from tests.helpers.tpu.cloud import BUNDLE, FakeCloud, Trainers, tpuctl
from tpu import bucket_layout, strict_json
from tpu.launcher import commands_launch
from tpu.launcher.cli import COMMANDS, build_parser
from tpu.launcher.command_context import make_command_context
from tpu.launcher.options import parse_options

GOLDENS = Path(__file__).parent / "goldens"
WRITE = os.environ.get("BERT_TPU_GOLDENS") == "write"
CASES = [
    (kind.name, backend)
    for kind in all_slices().values()
    if kind.chips == 16
    for backend in kind.generation.backends
]
WORDS = ("--data", "wiki=gs://bucket/data/wiki", "--env-secret", "HF_TOKEN=projects/p/secrets/hf")
RUN = ("--", "pretrain", "configs/pretrain/bert.py", "--arg", "corpus=@data/wiki")
RUN += ("--set", "name=a b")
MAKING = ("doctor", "up", "launch")


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_gcloud_commands_match_the_goldens(
    name: str, backend: str, cloud: FakeCloud, trainers: Trainers, capsys: pytest.CaptureFixture
):
    found = "\n".join(
        section(verb, name, backend, cloud, capsys) for verb in COMMANDS if verb != "prices"
    )
    file = GOLDENS / f"{name}-{backend}.txt"
    if WRITE:
        file.parent.mkdir(exist_ok=True)
        file.write_text(found)
    assert found == file.read_text(), f"{file.name} differs; BERT_TPU_GOLDENS=write renews it"


def test_every_golden_file_is_used():
    assert {file.stem for file in GOLDENS.glob("*.txt")} == {"-".join(case) for case in CASES}


def section(verb: str, name: str, backend: str, cloud: FakeCloud, capsys) -> str:
    """Returns a verb's arguments and the commands that it would run."""
    words = [verb, "--bucket", "gs://bucket", "--run-id", "r1"]
    region = all_slices()[name].generation.zones[0].rpartition("-")[0].upper()
    cloud.script(project="my-project", buckets={"bucket": region})
    if verb in MAKING:
        words += ["--slice", name, "--backend", backend, *WORDS]
        words += ["--service-account", "tpu@p.iam.gserviceaccount.com"]
    shown = words + (list(RUN) if verb in MAKING else [])
    words += ["--dry-run", *(RUN if verb in MAKING else ())]
    if verb not in MAKING:
        write_manifest(cloud, name, backend)
    assert tpuctl(*words) == 0, capsys.readouterr().err
    commands = capsys.readouterr().out.replace(BUNDLE.sha, "SHA")
    assert all(line.startswith("gcloud ") for line in commands.splitlines()), "not commands only"
    return f"$ tpu/tpuctl {shlex.join(shown)}\n{commands}"


def write_manifest(cloud: FakeCloud, name: str, backend: str) -> None:
    """Writes the manifest that a launch would have written."""
    zone = all_slices()[name].generation.zones[0]
    words = ["launch", "--bucket", "gs://bucket", "--run-id", "r1", "--slice", name]
    words += ["--backend", backend, "--project", "my-project", "--zones", zone]
    words += ["--data", "wiki=gs://bucket/data/wiki"]
    options = parse_options(build_parser(), words, RUN[1:])
    run, _ = commands_launch.plan_run(make_command_context(options))
    file = cloud.object("manifest.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(strict_json.to_text(run.manifest))
    assert run.folder == bucket_layout.RunFolder("gs://bucket/runs/r1")
