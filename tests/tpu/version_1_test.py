"""Tests runs that were launched with layout version 1: they are read, resumed and stopped.

Covers tpu/launcher/runs/version_1.py.
"""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.helpers.tpu.cloud import FakeCloud, tpuctl
from tests.tpu.scenario_test import ONE, launch, requested_zones
from tpu.launcher.restarts.loop_types import LoopState
from tpu.launcher.runs import version_1

OLD_LOOP_STATE = {
    "clock": 1e9,
    "now": 60.0,
    "phase": "running",
    "phase_since": 30.0,
    "incarnation": 0,
    "zone": "us-central1-b",
    "not_before": 0.0,
    "without_slice_since": 0.0,
    "ready_at": 20.0,
    "exit_at": None,
    "unwell_at": None,
    "beats": {"0": "1"},
    "beats_since": {"0": 30.0, "1": 30.0, "2": 30.0, "3": 30.0},
    "blind_since": None,
    "billed": 3600.0,
    "billing": True,
    "step": 5,
    "step_before": -1,
    "failures": 1,
    "tries": 0,
    "refusals": 0,
    "stopping_at": None,
    "blocked": {"us-central1-a": 900.0},
    "outcome": None,
    "reason": "",
}


@pytest.fixture
def old_run(cloud: FakeCloud, trainers) -> FakeCloud:
    """A run that trains and whose launcher was interrupted, with the files of version 1."""
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 6:
            raise KeyboardInterrupt

    trainers.each_turn = turn
    assert launch() == 130
    trainers.each_turn, trainers.attempts_folder = lambda number: None, "incarnations"
    rewrite(cloud.object("manifest.json"), {"required_versions": "requires"}, version=1)
    names = {"attempt": "incarnation", "host_addresses": "hosts", "required_versions": "requires"}
    rewrite(cloud.object("attempts/0/job.json"), names, version=1)
    for file in cloud.object("attempts/0").glob("*.heartbeat.json"):
        rewrite(file, {"last_log_line": "line"})
        file.rename(file.with_name(file.name.replace("heartbeat", "state")))
    cloud.object("attempts/0/job.json").rename(cloud.object("attempts/0/order.json"))
    cloud.object("attempts").rename(cloud.object("incarnations"))
    cloud.object("restart_loop.json").unlink()
    cloud.object("babysit.json").write_text(json.dumps(OLD_LOOP_STATE))
    return cloud


def rewrite(file: Path, names: dict[str, str], **values: object) -> None:
    """Renames keys of a JSON object and sets some."""
    data = {names.get(key, key): value for key, value in json.loads(file.read_text()).items()}
    file.write_text(json.dumps({**data, **values}))


def test_all_fields_of_the_loop_state_are_translated():
    upgraded = version_1.upgrade_loop_state({**OLD_LOOP_STATE, "phase": "leaving"})
    assert upgraded["phase"] == "draining" and upgraded["attempts_without_progress"] == 1
    assert set(upgraded) == {field.name for field in dataclasses.fields(LoopState)}
    assert list(upgraded.values())[3:] == list(OLD_LOOP_STATE.values())[3:]


def test_status_and_logs_read_a_version_1_run(old_run, capsys):
    old_run.object("incarnations/0/host-0.log").write_text("step 5\n")
    assert tpuctl("status", *ONE) == 0 and tpuctl("logs", *ONE, "--host", "0") == 0
    output = capsys.readouterr().out
    assert "attempt 0: training in us-central1-b, checkpoint at step 5" in output
    assert "training, " in output and "[attempt 0 host 0] step 5" in output


def test_babysit_resumes_a_version_1_run_in_the_same_layout(old_run, trainers):
    trainers.codes = {0: 134}
    assert tpuctl("babysit", *ONE) == 0
    assert len(requested_zones(old_run)) == 2 and not old_run.slices()
    spec = json.loads(old_run.object("incarnations/1/order.json").read_text())
    assert (spec["version"], spec["incarnation"], len(spec["hosts"])) == (1, 1, 4)
    assert "requires" in spec and not old_run.object("attempts").exists()
    assert json.loads(old_run.object("manifest.json").read_text())["version"] == 1
    assert not old_run.object("restart_loop.json").exists()


def test_stop_ends_a_version_1_run(old_run):
    assert tpuctl("stop", *ONE) == 0 and not old_run.slices()


def test_a_manifest_of_a_later_version_is_refused(cloud, trainers, capsys):
    assert launch() == 0
    rewrite(cloud.object("manifest.json"), {}, version=3)
    assert tpuctl("status", *ONE) == 1
    assert "has version 3, this launcher reads up to 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "new"), [("--take-over", "--force-lease"), ("--keep", "--keep-slice")]
)
def test_a_renamed_flag_is_answered_with_its_new_name(cloud, trainers, capsys, flag, new):
    assert tpuctl("babysit", *ONE, flag) == 2
    assert f"{flag} was renamed: use {new}" in capsys.readouterr().err
