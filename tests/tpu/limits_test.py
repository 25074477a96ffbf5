"""Tests invalid limits and unconfirmed costs. Covers tpu/launcher/options.py and runs/cost.py."""

import pytest

from tests.helpers.tpu.cloud import DATA, LAUNCH, WORK, tpuctl
from tests.tpu.scenario_test import ONE


@pytest.mark.parametrize("hours", ["-5", "0", "nan", "inf"])
def test_invalid_max_hours_changes_nothing(cloud, trainers, capsys, hours):
    assert tpuctl("up", *LAUNCH, *DATA, *WORK) == 0
    before = len(cloud.argv)
    assert tpuctl("babysit", *ONE, "--max-hours", hours) == 2
    assert f"--max-hours {hours}: expected more than 0" in capsys.readouterr().err
    assert len(cloud.argv) == before and cloud.slices()


def test_ctrl_d_rejects_the_cost(cloud, trainers, capsys, monkeypatch):
    def ends(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", ends)
    words = [word for word in LAUNCH if word != "--yes"]
    assert tpuctl("launch", *words, *DATA, *WORK) == 1
    assert "nothing was created" in capsys.readouterr().err and not cloud.commands("create")
