"""Every command of every verb, for each generation and way of renting, word for word.

    BERT_TPU_GOLDENS=write pytest tests/tpu/golden_test.py      writes them anew

Lines are what `--dry-run` prints; a change here is a change of what is run against the cloud.
"""

import os
import shlex
from pathlib import Path

import pytest

from bert_jax.hardware.tpu_slices import all_slices
from tests.tpu.cloud import BUNDLE, FakeCloud, Trainers, pod
from tpu.launcher.cli import VERBS

GOLDENS = Path(__file__).parent / "goldens"
WRITE = os.environ.get("BERT_TPU_GOLDENS") == "write"
CASES = [
    (kind.name, backend)
    for kind in all_slices().values()
    if kind.chips == 16
    for backend in kind.generation.backends
]
WORDS = ("--data", "wiki=gs://bucket/data/wiki", "--env-secret", "HF_TOKEN=projects/p/secrets/hf")
RUN = ("--", "pretrain", "configs/pretrain/bert.py", "--with", "corpus=@data/wiki")
RUN += ("--set", "name=a b")
MAKING = ("doctor", "up", "launch")


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_every_command_is_as_it_was(
    name: str, backend: str, cloud: FakeCloud, trainers: Trainers, capsys: pytest.CaptureFixture
):
    found = "\n".join(
        section(verb, name, backend, cloud, capsys) for verb in VERBS if verb != "prices"
    )
    file = GOLDENS / f"{name}-{backend}.txt"
    if WRITE:
        file.parent.mkdir(exist_ok=True)
        file.write_text(found)
    assert found == file.read_text(), f"{file.name} differs; BERT_TPU_GOLDENS=write renews it"


def test_no_golden_is_left_over():
    assert {file.stem for file in GOLDENS.glob("*.txt")} == {"-".join(case) for case in CASES}


def section(verb: str, name: str, backend: str, cloud: FakeCloud, capsys) -> str:
    """A verb's words, and the commands that it would run."""
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
    assert pod(*words) == 0, capsys.readouterr().err
    commands = capsys.readouterr().out.replace(BUNDLE.sha, "SHA")
    assert all(line.startswith("gcloud ") for line in commands.splitlines()), "not commands only"
    return f"$ tpu/pod {shlex.join(shown)}\n{commands}"


def write_manifest(cloud: FakeCloud, name: str, backend: str) -> None:
    """As a launch would have left it."""
    from tests.tpu.cloud import InProcess
    from tpu import names, strict_json
    from tpu.launcher import cli, verbs

    words = ["launch", "--bucket", "gs://bucket", "--run-id", "r1", "--slice", name]
    args = cli.build_parser().parse_args([*words, "--backend", backend, "--project", "my-project"])
    args.arguments = RUN[1:]
    args.data = ["wiki=gs://bucket/data/wiki"]
    args.zones = all_slices()[name].generation.zones[0]
    args.reader = InProcess()
    run, _ = verbs.plan_run(args, args.reader)
    file = cloud.object("manifest.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(strict_json.to_text(run.manifest))
    assert run.folder == names.RunFolder("gs://bucket/runs/r1")
