"""Tests --keep-slice. Covers tpu/launcher/commands_inspect.py and restarts/restart_policy.py."""

import json

import pytest

from tests.helpers.tpu.cloud import tpuctl
from tests.tpu.scenario_test import ONE, launch, requested_zones


@pytest.mark.parametrize("keep", [True, False])
def test_stop_keep_slice_is_obeyed_by_the_launcher(cloud, trainers, capsys, keep):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 12:
            assert tpuctl("stop", *ONE, *(["--keep-slice"] if keep else [])) == 0

    trainers.each_turn = turn
    assert launch() == 75
    assert bool(cloud.slices()) == keep
    for host in range(4):
        ended = cloud.object(f"attempts/0/host-{host}.exit.json")
        assert json.loads(ended.read_text())["code"] == 75
    trainers.each_turn, trainers.codes = lambda turn: None, {}
    assert ("the slice is kept" in capsys.readouterr().err) == keep
    assert tpuctl("babysit", *ONE) == 0 and len(requested_zones(cloud)) == 2 and not cloud.slices()


def test_launch_keep_slice_applies_when_stopped(cloud, trainers):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 12:
            cloud.object("STOP").write_text("by hand")

    trainers.each_turn = turn
    assert launch("--keep-slice") == 75
    assert cloud.slices() and not cloud.commands(" delete ")
