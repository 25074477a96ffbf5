"""A cloud of one's own for every test: folders, a script of what goes wrong, and every argv."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tpu.cloud import BUNDLE, HERE, Clock, FakeCloud, InProcess, Trainers
from tpu.launcher import cli, timing, verbs


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCloud:
    """A cloud with data and nothing else; gcloud on PATH is the fake."""
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
    """The launcher in this process: fake gcloud, fake clock, hosts without processes."""
    found = Trainers(cloud)
    monkeypatch.setattr(cli, "Gcloud", InProcess)
    monkeypatch.setattr(timing, "Timing", Clock)
    monkeypatch.setattr(verbs, "pack", lambda root: BUNDLE)
    monkeypatch.setattr("fake_gcloud.hosts._once", found.remote)
    monkeypatch.setattr("fake_gcloud.tpus.time.time", lambda: Clock.now)
    monkeypatch.setattr(Clock, "now", 1e9)
    monkeypatch.setattr(Clock, "on_sleep", staticmethod(found.tick))
    yield found
