"""Covers setup.py, CITATION.cff and tpu/code_archive.py: what a wheel contains and runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bert_jax
from tpu.code_archive import pack

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Returns a folder with the files of a wheel, as below site-packages."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("site-packages")
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def run(installed: Path, folder: Path, *words: str) -> str:
    """Runs bert-jax from the installed files in another folder; returns its output."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "bert_jax", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_recipes_of_a_wheel_are_found_by_name(installed, tmp_path):
    listed = run(installed, tmp_path, "recipes")
    for file in (ROOT / "configs").rglob("*.py"):
        name = file.relative_to(ROOT / "configs").with_suffix("").as_posix()
        assert f"{name}: " in listed
    source = run(installed, tmp_path, "recipes", "small_corpus")
    assert source == (ROOT / "configs/pretrain/small_corpus.py").read_text()


def test_launcher_of_a_wheel_runs(installed, tmp_path):
    assert "| v6e-16 | 16 |" in run(installed, tmp_path, "tpu", "prices")
    assert "usage: bert-jax tpu launch" in run(installed, tmp_path, "tpu", "launch", "--help")
    script = installed / "bert_jax/_source/tpu/smoke_16.sh"
    assert os.access(script, os.X_OK)


def test_a_wheel_packs_the_same_code_for_hosts_as_a_checkout(installed):
    archive = pack(installed / "bert_jax/_source")
    assert not [name for name in archive.files if "_source" in name]
    for folder, pattern in (("bert_jax", "*.py"), ("configs", "*.py"), ("tpu", "*")):
        expected = {
            file.relative_to(ROOT).as_posix()
            for file in (ROOT / folder).rglob(pattern)
            if file.is_file() and "__pycache__" not in file.parts
        }
        assert expected == {
            name
            for name in archive.files
            if name.startswith(f"{folder}/") and (pattern == "*" or name.endswith(".py"))
        }
    assert {"setup.py", "pyproject.toml", "constraints.txt", "README.md"} <= set(archive.files)
    assert {"bert_jax/py.typed", "bert_jax/parallel/tpu_slices.json"} <= set(archive.files)
    for name in ("index.html", "style.css", "app.js", "icon.svg"):
        assert f"bert_jax/apps/serve/page/{name}" in archive.files


def test_citation_names_the_current_version():
    (version,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert version == bert_jax.__version__
