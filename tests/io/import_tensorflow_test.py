"""Tests that importing TensorFlow writes nothing, unless it fails; a small file stands for it."""

import subprocess
import sys

import pytest

from bert_jax.io import import_tensorflow

CODE = (
    "import os\n"
    "from bert_jax.io.import_tensorflow import import_tensorflow\n"
    "print(import_tensorflow().__name__)\n"
    "os.write(2, b'later')"
)


NOISY = "import os\ntry: os.write(2, b'noise')\nexcept OSError: pass\n"


@pytest.mark.parametrize(
    ("end", "close", "expected"),
    [("", "", "later"), ("raise ImportError('broken')", "", "noise"), ("", " 2>&-", "")],
)
def test_only_a_failing_import_shows_what_it_writes(tmp_path, end, close, expected):
    (tmp_path / "tensorflow.py").write_text(NOISY + end)
    root = import_tensorflow.__file__.partition("/bert_jax/")[0]
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -c "$0"{close}', CODE],
        env={"PYTHONPATH": f"{tmp_path}:{root}"},
        capture_output=True,
        text=True,
    )
    if end:
        assert done.stderr.startswith(expected) and "broken" in done.stderr
    else:
        assert done.stderr == expected and done.stdout == "tensorflow\n"
