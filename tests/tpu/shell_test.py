"""Tests the shell files under tpu/, and the commands in tpu/README.md as dry runs.

Covers tpu/*.sh, tpu/tpuctl and tpu/host/*.sh.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.tpu.cloud import ROOT, FakeCloud, run_tpuctl
from tpu.job import Job, Rental, to_json

RECIPES = sorted((ROOT / "tpu").glob("*.sh"))
FILES = [*RECIPES, ROOT / "tpu/tpuctl", *(ROOT / "tpu/host").glob("*.sh")]
FILES += [ROOT / "tests/helpers/tpu/fake_cloud.sh"]
NAMES = {
    "pretrain_bert_base_16.sh",
    "pretrain_bert_base_16_large_batch.sh",
    "pretrain_bert_large_16.sh",
    "pretrain_roberta_base_16.sh",
    "finetune_glue_multi_task_16.sh",
    "finetune_glue_sharded_16.sh",
    "finetune_glue_text_to_text_16.sh",
    "smoke_16.sh",
}
README = ROOT / "tpu/README.md"


def test_all_recipes_exist():
    assert {file.name for file in RECIPES} == NAMES


def test_shellcheck_passes():
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program, "pip install -e '.[test]' brings shellcheck"
    done = subprocess.run([program, *map(str, FILES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_bash_parses_shell_files(file: Path):
    done = subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.name)
def test_recipes_are_short_and_call_the_launcher_once(file: Path):
    text = file.read_text()
    assert len(text.splitlines()) < 30 and os.access(file, os.X_OK)
    assert "\nset -euo pipefail\n" in text and text.count("\nexec tpu/tpuctl ") == 1


# One of each mode of a job: a single process on all hosts, and shards.
FAST_RECIPES = {"pretrain_bert_large_16.sh", "finetune_glue_sharded_16.sh"}


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(
            file, id=file.name, marks=[] if file.name in FAST_RECIPES else [pytest.mark.slow]
        )
        for file in RECIPES
        if f"tpu/{file.name}" not in README.read_text()  # test_readme_commands_dry_run runs these
    ],
)
def test_recipes_dry_run(cloud: FakeCloud, file: Path):
    words = [str(file), "--dry-run", "--project", "my-project"]
    environment = {**os.environ, "BUCKET": "gs://my-bucket"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "queued-resources create" in done.stdout and "v6e-16" in done.stdout
    config = re.search(r"configs/\S+\.py", file.read_text())
    assert config is None or (ROOT / config[0]).is_file()


def test_recipes_require_a_bucket(cloud: FakeCloud):
    environment = {name: value for name, value in os.environ.items() if name != "BUCKET"}
    done = subprocess.run([str(RECIPES[0])], capture_output=True, text=True, env=environment)
    assert done.returncode != 0 and "set BUCKET=gs://..." in done.stderr


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.name)
def test_recipes_run_on_hosts_of_skypilot(cloud: FakeCloud, file: Path):
    """Tests that the job is accepted; then the worker finds that this machine is no host."""
    environment = {**os.environ, "BUCKET": "gs://my-bucket", "BERT_TPU_VERB": "work", "CORPUS": ""}
    done = subprocess.run([str(file)], capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and "error: this machine is not a host of a slice" in done.stderr


def commands() -> list[str]:
    """Returns the lines in the README's code blocks that start with tpu/, continuations joined."""
    blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", README.read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    plain = [re.sub(r"\s+#.*$", "", line).strip() for line in lines]
    return [line for line in plain if re.match(r"([A-Z_]+=\S+ )*tpu/", line)]


def test_readme_price_table_matches_the_command(cloud: FakeCloud):
    assert run_tpuctl("prices", "--hours", "12").stdout in README.read_text()


def test_readme_has_commands():
    assert len(commands()) >= 12


def each_script_once() -> list[Any]:
    """Returns the lines of the README; those that run a script again are slow."""
    lines, seen = [], set[str]()
    for line in commands():
        script = re.search(r"tpu/\w+\.sh|tpu/tpuctl \w+", line)
        name = script[0] if script else line
        lines.append(pytest.param(line, marks=[pytest.mark.slow] if name in seen else []))
        seen.add(name)
    return lines


@pytest.mark.parametrize("line", each_script_once())
def test_readme_commands_dry_run(cloud: FakeCloud, line: str):
    _launched(cloud)
    before, _, after = line.replace(" --dry-run", "").partition(" -- ")
    dry = f"{before} --dry-run" + (f" -- {after}" if after else "")
    environment = {**os.environ, "BUCKET": "gs://my-bucket"}
    done = subprocess.run(
        ["bash", "-c", dry], cwd=ROOT, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, f"{dry}\n{done.stderr}"
    assert done.stdout.startswith("gcloud "), done.stdout


def _launched(cloud: FakeCloud) -> None:
    """Writes the job of the run that the README mentions."""
    job = Job(
        bucket="gs://my-bucket", run_id="smoke", slice="v6e-16", arguments=("pretrain", "bert")
    )
    rental = Rental(code="0" * 64, project="my-project", zone="us-central1-b")
    file = cloud.folder / "gcs/my-bucket/runs/smoke/job.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(to_json(job, rental))
