"""Tests tpu/worker/bootstrap.sh with a fake `uv` that installs nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUDO = ROOT / "tests/helpers/tpu/worker_bin"
UV = """#!/bin/sh
echo "$*" >> "$HOME/uv.txt"
if [ "$1" = venv ]; then
  for word; do folder="$word"; done
  mkdir -p "$folder/bin" && touch "$folder/bin/python"
fi
[ ! -e "$HOME/broken" ]
"""


@pytest.fixture
def home(tmp_path) -> Path:
    (tmp_path / "bin").mkdir()
    uv = tmp_path / "bin/uv"
    uv.write_text(UV)
    uv.chmod(0o755)
    return tmp_path


def bootstrap(home: Path, sha: str, word: str | None = None, **more: str):
    code = home / "bert_jax" / sha
    if not code.exists():
        (code / "tpu/worker").mkdir(parents=True)
        shutil.copy(ROOT / "tpu/worker/bootstrap.sh", code / "tpu/worker")
        for name in ("setup.py", "constraints.txt"):
            shutil.copy(ROOT / name, code)
    return subprocess.run(
        ["bash", str(code / "tpu/worker/bootstrap.sh"), sha if word is None else word],
        env={"HOME": str(home), "PATH": f"{home}/bin:{SUDO}:{os.environ['PATH']}", **more},
        capture_output=True,
        text=True,
    )


def installs(home: Path) -> list[str]:
    file = home / "uv.txt"
    return file.read_text().splitlines() if file.exists() else []


def test_venv_is_created_once_per_requirements(home):
    for sha in ("a" * 64, "a" * 64, "b" * 64):
        done = bootstrap(home, sha)
        assert done.returncode == 0, done.stderr
        assert (home / "bert_jax" / sha / ".venv/bin/python").exists()
    made, filled = installs(home)
    assert made.startswith("venv --quiet --python 3.11")
    code = home / "bert_jax" / ("a" * 64)
    assert f"--constraint {code}/constraints.txt {code}[tpu]" in filled
    (home / "bert_jax" / ("c" * 64) / "tpu/worker").mkdir(parents=True)
    other = home / "bert_jax" / ("c" * 64)
    shutil.copy(ROOT / "tpu/worker/bootstrap.sh", other / "tpu/worker")
    (other / "setup.py").write_text("new")
    (other / "constraints.txt").write_text("jax==9")
    assert bootstrap(home, "c" * 64).returncode == 0
    assert len(installs(home)) == 4
    assert len(list((home / "bert_jax").glob("venv-*"))) == 2


def test_incomplete_venv_is_recreated(home):
    (home / "broken").touch()
    assert bootstrap(home, "a" * 64).returncode != 0
    (home / "broken").unlink()
    assert bootstrap(home, "a" * 64).returncode == 0
    assert (home / "bert_jax" / ("a" * 64) / ".venv/complete").exists()


def test_given_python_is_used_without_installation(home):
    done = bootstrap(home, "a" * 64, BERT_TPU_PYTHON="/opt/python")
    assert done.returncode == 0 and "/opt/python" in done.stdout and not installs(home)


def test_bootstrap_of_another_bundle_is_rejected(home):
    done = bootstrap(home, "a" * 64, "b" * 64)
    assert done.returncode == 64 and "run tpu/tpuctl sync again" in done.stderr
