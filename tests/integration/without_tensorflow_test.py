"""Covers bert_jax/errors.py, interop/tf1.py and data/seqio/__init__.py without TensorFlow.

Each test runs in a process of its own in which TensorFlow, seqio and TFDS cannot be imported.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.apps.testing.text_corpus import write_text, write_vocabulary
from bert_jax.interop import tf1

ROOT = Path(__file__).parents[2]
BLOCKED = ("tensorflow", "tensorflow_text", "tensorflow_datasets", "seqio")
# The modules that need TensorFlow; importing them says what to install.
NEED_TENSORFLOW = (
    "bert_jax.data.finetuning.readers.tfds_glue",
    "bert_jax.data.seqio",
    "bert_jax.tasks.seqio_tasks",
)


def run_without_tensorflow(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs Python code in `folder`; each blocked package is missing there."""
    block = f"import sys\nsys.modules.update(dict.fromkeys({BLOCKED!r}))\n"
    return subprocess.run(
        [sys.executable, "-c", block + code], cwd=folder, capture_output=True, text=True
    )


def test_every_module_imports_or_names_the_extra(tmp_path):
    code = f"""
import importlib, pkgutil
import bert_jax
from bert_jax.errors import MissingExtraError
refused = []
for module in pkgutil.walk_packages(bert_jax.__path__, "bert_jax.", onerror=lambda name: None):
    if module.name.endswith(("__main__", ".beam", ".beam_curation")) or "._source" in module.name:
        continue
    try:
        importlib.import_module(module.name)
    except MissingExtraError as error:
        assert "pip install 'bert_jax[seqio]'" in str(error), error
        refused.append(module.name)
assert refused == {sorted(NEED_TENSORFLOW)!r}, refused
"""
    done = run_without_tensorflow(code, tmp_path)
    assert done.returncode == 0, done.stderr


PREPARE = """
from bert_jax.__main__ import main
try: main(["--help"])
except SystemExit as done: assert not done.code
assert main(["prepare", "--files", "text/*", "--tokenizer", "vocabulary", "--output", "prepared",
             "--workers", "1"]) == 0
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    write_text(tmp_path / "text", num_documents=8)
    write_vocabulary(tmp_path / "vocabulary")
    return tmp_path


def test_prepare_runs_and_tasks_are_refused(folder):
    code = f"""{PREPARE}
assert main(["prepare", "--task", "books", "--output", "other"]) == 1
assert main(["data", "inspect", "glue/rte", "--tokenizer", "vocabulary"]) == 1
"""
    done = run_without_tensorflow(code, folder)
    assert done.returncode == 0, done.stderr
    first, second = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert first.startswith("error: seqio tasks need seqio and TensorFlow; install the extra")
    assert second.startswith("error: reading GLUE without --glue-dir needs TensorFlow Datasets;")


@pytest.mark.slow  # architecture_test.py follows all imports of training and prediction
def test_pretraining_runs(folder):
    recipe = ROOT / "tests/helpers/tiny_recipe.py"
    code = f"""{PREPARE}
assert main(["pretrain", {str(recipe)!r}, "--run", "run", "--arg", "corpus=prepared",
             "steps=4"]) == 0
"""
    done = run_without_tensorflow(code, folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "run" / "checkpoints").is_dir()


def test_reading_a_tf1_checkpoint_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for name in ("bert_config.json", "bert_model.ckpt.index"):
        (tmp_path / name).touch()
    with pytest.raises(ImportError, match=r"reading TF1 checkpoints needs TensorFlow.*\[seqio\]"):
        tf1.read_checkpoint(tmp_path / "bert_model.ckpt")
