"""Provides a fake cloud for each test."""

import os
from pathlib import Path

import pytest

from tests.helpers.tpu.cloud import CODE, HERE, Clock, FakeCloud, Trainers, execute


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCloud:
    """Provides a cloud with data and nothing else; gcloud on PATH is the fake one."""
    folder = tmp_path / "cloud"
    folder.mkdir()
    monkeypatch.setenv("FAKE_CLOUD", str(folder))
    monkeypatch.setenv("PATH", f"{HERE / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for name in [name for name in os.environ if name.startswith("BERT_TPU_")]:
        monkeypatch.delenv(name)
    (folder / "gcs/bucket/data/wiki/train").mkdir(parents=True)
    (folder / "gcs/bucket/data/wiki/train/0.records").touch()
    return FakeCloud(folder)


@pytest.fixture
def trainers(cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> Trainers:
    """Runs the launcher in this process with fake gcloud, fake clock and simulated hosts."""
    clock = Clock()
    found = Trainers(cloud, clock)
    monkeypatch.setattr("tpu.gcloud._execute", execute)
    monkeypatch.setattr("tpu.launcher.time", clock)
    monkeypatch.setattr("tpu.code_archive.pack", lambda root: CODE)
    monkeypatch.setattr("tests.helpers.tpu.fake_gcloud.hosts._once", found.remote)
    monkeypatch.setattr("tests.helpers.tpu.fake_gcloud.tpus.time", clock)
    return found
