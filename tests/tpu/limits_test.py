"""Limits that are none, and a question about them that nobody answers."""

import pytest

from tests.tpu.cloud import DATA, LAUNCH, WORK, pod
from tests.tpu.scenario_test import ONE


@pytest.mark.parametrize("hours", ["-5", "0", "nan", "inf"])
def test_a_limit_that_is_none_touches_nothing(cloud, trainers, capsys, hours):
    assert pod("up", *LAUNCH, *DATA, *WORK) == 0
    before = len(cloud.argv)
    assert pod("babysit", *ONE, "--max-hours", hours) == 2
    assert f"--max-hours {hours}: expected more than 0" in capsys.readouterr().err
    assert len(cloud.argv) == before and cloud.slices()


def test_ctrl_d_is_no(cloud, trainers, capsys, monkeypatch):
    def ends(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", ends)
    words = [word for word in LAUNCH if word != "--yes"]
    assert pod("launch", *words, *DATA, *WORK) == 1
    assert "nothing was created" in capsys.readouterr().err and not cloud.commands("create")
