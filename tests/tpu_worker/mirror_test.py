"""Tests which files are copied to the bucket. Covers tpu/worker/bucket_sync.py."""

import re
from pathlib import Path

import pytest

from bert_jax.io.atomic_io import atomic_path
from tpu.worker import storage
from tpu.worker.bucket_sync import _TEMPORARY_FILES, ShardedSync
from tpu.worker.host_context import HostContext


def skipped(name: str) -> bool:
    return any(re.match(pattern, name) for pattern in _TEMPORARY_FILES)


@pytest.mark.parametrize("name", ["config.json", "cells/rte/1/report.html"])
def test_temporary_files_are_excluded(tmp_path: Path, name: str):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(tmp_path / name) as temporary:
        temporary.touch()
        assert skipped(temporary.relative_to(tmp_path).as_posix())
    assert not skipped(name)


def test_temporary_folders_are_excluded(tmp_path: Path):
    with atomic_path(tmp_path / "vocabulary") as temporary:
        temporary.mkdir()
        assert skipped(f"{temporary.name}/vocab.txt")
    assert not skipped("vocabulary/vocab.txt")


def test_job_logs_are_uploaded_when_changed(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    written: list[tuple[str, str]] = []
    monkeypatch.setattr(storage, "rsync", lambda source, target, **rest: None)
    monkeypatch.setattr(storage, "write", lambda url, text: written.append((url, text)))
    monkeypatch.setattr(storage, "copy", lambda source, target: None)
    lanes = ShardedSync(HostContext(run_url="gs://b/runs/r", attempt=0), [0], 1)
    lanes.fetch()
    run = tmp_path / "home/bert_jax/runs/r/run"
    (run / "lanes").mkdir()
    (run / "lanes/lane-0-of-1.json").write_text('{"jobs": ["rte/1"]}')
    (run / "rte/1").mkdir(parents=True)
    log, url = run / "rte/1/log.txt", "gs://b/runs/r/run/rte/1/log.txt"
    log.write_text("one\ntw")
    lanes.mirror()
    lanes.mirror()
    assert written == [(url, "one\n")]
    log.write_text("one\ntwo\n")
    lanes.mirror()
    assert written[1:] == [(url, "one\ntwo\n")]


def test_lock_files_are_excluded():
    assert skipped("lock") and skipped("lanes/0-of-16/lock") and not skipped("clock")
