"""Covers bert_jax/io/file_lock.py with a second process: a process can lock its own files."""

import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.io.file_lock import AlreadyLockedError, acquire_lock, lock_owner

HOLD_LOCK = """
import sys
from pathlib import Path
from bert_jax.io.file_lock import acquire_lock
with acquire_lock(Path(sys.argv[1]), owner="the test", shared=sys.argv[2] == "shared"):
    print("locked", flush=True)
    sys.stdin.readline()
"""


def start_process(path: Path, kind: str) -> subprocess.Popen[str]:
    """Starts a process that holds the lock until it reads a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(path), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    return process


def test_lock_of_a_killed_process_is_free(tmp_path):
    path = tmp_path / "lock"
    with start_process(path, "exclusive") as process:
        assert lock_owner(path) == "the test"
        with pytest.raises(AlreadyLockedError, match="the test"):
            acquire_lock(path)
        process.kill()
        process.wait()
    assert path.exists() and lock_owner(path) is None
    with acquire_lock(path, owner="x"):
        assert path.read_text() == "x\n"


def test_shared_locks_exclude_exclusive_ones_only(tmp_path):
    path = tmp_path / "lock"
    with start_process(path, "shared") as process:
        acquire_lock(path, shared=True).close()
        with pytest.raises(AlreadyLockedError):
            acquire_lock(path)
        process.communicate("\n")
    acquire_lock(path).close()


def test_missing_file_is_not_locked(tmp_path):
    assert lock_owner(tmp_path / "absent") is None
    assert not (tmp_path / "absent").exists()
