"""Covers examples/*.ipynb: every cell runs, on one CPU with little data; no outputs are stored."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from bert_jax.apps.testing.models import small_model
from bert_jax.export.export import export
from bert_jax.models.layers.config import LearnedPositions

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Returns the folder of a small model, which stands for BERT-base."""
    folder = tmp_path_factory.mktemp("model")
    positions = LearnedPositions(max_position_embeddings=64)
    export(small_model(folder / "vocabulary", positions=positions), folder / "exported")
    return folder / "exported"


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_runs(file, model, tmp_path, monkeypatch):
    notebook = nbformat.read(file, as_version=4)
    for cell in notebook.cells:
        assert not cell.get("outputs") and not cell.get("execution_count"), "clear the outputs"
    # As a process started from a shell in which the package is installed.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("BERT_JAX_SMALL", "1")
    monkeypatch.setenv("BERT_JAX_MODEL", str(model))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.execute(cwd=str(tmp_path))  # raises the error of a cell
    printed = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ())
    )
    assert "error:" not in printed  # of a command after "!"


def test_there_are_five_notebooks():
    assert len(NOTEBOOKS) == 5
