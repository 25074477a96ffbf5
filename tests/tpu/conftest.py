"""Provides a fake cloud for each test."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.tpu.cloud import BUNDLE, HERE, Clock, FakeCloud, InProcess, Trainers
from tpu.launcher import clock, command_context, commands_launch


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
def trainers(cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainers]:
    """Runs the launcher in this process with fake gcloud, fake clock and simulated hosts."""
    found = Trainers(cloud)
    monkeypatch.setattr(command_context, "GcloudRunner", InProcess)
    monkeypatch.setattr(clock, "ScaledClock", Clock)
    monkeypatch.setattr(commands_launch, "pack", lambda root: BUNDLE)
    monkeypatch.setattr("tests.helpers.tpu.fake_gcloud.hosts._once", found.remote)
    monkeypatch.setattr("tests.helpers.tpu.fake_gcloud.tpus.time.time", lambda: Clock.now)
    monkeypatch.setattr(Clock, "now", 1e9)
    monkeypatch.setattr(Clock, "on_sleep", staticmethod(found.tick))
    yield found
