"""What the mirror leaves alone: files that are being written, and locks."""

import re
from pathlib import Path

import pytest

from bert_jax.aside import written_aside
from tpu.worker.mirror import _PASSING


def skipped(name: str) -> bool:
    return any(re.match(pattern, name) for pattern in _PASSING)


@pytest.mark.parametrize("name", ["config.json", "cells/rte/1/report.html"])
def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path, name: str):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    with written_aside(tmp_path / name) as aside:
        aside.touch()
        assert skipped(aside.relative_to(tmp_path).as_posix())
    assert not skipped(name)


def test_a_folder_that_is_being_written_is_left_alone(tmp_path: Path):
    with written_aside(tmp_path / "vocabulary") as aside:
        aside.mkdir()
        assert skipped(f"{aside.name}/vocab.txt")
    assert not skipped("vocabulary/vocab.txt")


def test_locks_are_left_alone():
    assert skipped("lock") and skipped("lanes/0-of-16/lock") and not skipped("clock")
