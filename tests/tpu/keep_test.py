"""A launcher whose run is asked to stop leaves the slice to whoever wants to keep it."""

import json

import pytest

from tests.tpu.cloud import pod
from tests.tpu.scenario_test import ONE, asked, launch


@pytest.mark.parametrize("keep", [True, False])
def test_stop_decides_what_a_live_launcher_leaves(cloud, trainers, capsys, keep):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 12:
            assert pod("stop", *ONE, *(["--keep"] if keep else [])) == 0

    trainers.each_turn = turn
    assert launch() == 75
    assert bool(cloud.slices()) == keep
    for host in range(4):
        ended = cloud.object(f"incarnations/0/host-{host}.exit.json")
        assert json.loads(ended.read_text())["code"] == 75
    trainers.each_turn, trainers.codes = lambda turn: None, {}
    assert ("the slice is kept" in capsys.readouterr().err) == keep
    assert pod("babysit", *ONE) == 0 and len(asked(cloud)) == 2 and not cloud.slices()


def test_a_launcher_that_keeps_its_slice_does_so_when_asked_to_stop(cloud, trainers):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 12:
            cloud.object("STOP").write_text("by hand")

    trainers.each_turn = turn
    assert launch("--keep") == 75
    assert cloud.slices() and not cloud.commands(" delete ")
