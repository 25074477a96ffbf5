"""Tests restart loops that were suspended, ended or lost their state.

Covers tpu/launcher/restarts/restart_policy.py and restart_loop.py.
"""

import json

import pytest

from tests.helpers.tpu.cloud import DATA, LAUNCH, SLICE, WORK, Clock, tpuctl
from tests.tpu.scenario_test import ONE, launch, requested_zones

HOUR = 3600.0
UNAVAILABLE = "UNAVAILABLE: The service is currently unavailable."


def test_limit_is_enforced_after_suspend_without_network(cloud, trainers, capsys):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 8:
            Clock.now += 4 * HOUR
            cloud.script(fail=[{"match": "storage ls", "times": 3, "text": UNAVAILABLE}])

    trainers.each_turn = turn
    assert launch("--max-hours", "2") == 75
    output = capsys.readouterr().err
    assert (
        output.count("cannot be read at the moment") == 3 and "limit of 2.00 slice hours" in output
    )
    assert not cloud.slices()


def test_loop_gives_up_when_the_cloud_stays_unreachable(cloud, trainers, capsys):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 8:
            cloud.script(fail=[{"match": "storage ls", "text": UNAVAILABLE}])

    trainers.each_turn = turn
    started_at = Clock.now
    assert launch("--max-hours", "2") == 1
    assert "the cloud cannot be reached any more" in capsys.readouterr().err
    assert 3 * HOUR <= Clock.now - started_at < 3.2 * HOUR


def test_babysit_uses_a_slice_granted_in_the_meantime(cloud, trainers):
    cloud.script(slices={"*": {"queue": "WAITING_FOR_RESOURCES"}})

    def turn(number: int) -> None:
        if number == 3:
            raise KeyboardInterrupt

    trainers.each_turn = turn
    assert launch() == 130
    Clock.now += 30 * HOUR
    cloud.script()
    assert tpuctl("babysit", *ONE) == 0
    assert len(requested_zones(cloud)) == 1 and not cloud.slices()


def test_suspended_time_does_not_count_as_waiting(cloud, trainers):
    cloud.script(slices={"*": {"queue": "WAITING_FOR_RESOURCES"}})

    def turn(number: int) -> None:
        if number == 3:
            Clock.now += 30 * HOUR
        if number == 9:
            cloud.script()

    trainers.each_turn = turn
    assert launch() == 0 and len(requested_zones(cloud)) == 1


def test_failed_deletion_is_repeated_after_suspend(cloud, trainers):
    trainers.codes = {0: 2}
    cloud.script(
        fail=[{"match": "queued-resources delete", "times": 1, "text": UNAVAILABLE}],
    )

    def turn(number: int) -> None:
        if len(cloud.commands("queued-resources delete")) == 1:
            Clock.now += 3 * HOUR

    trainers.each_turn = turn
    assert launch() == 2 and not cloud.slices()


def test_babysit_without_loop_state_starts_the_existing_slice(cloud, trainers):
    assert tpuctl("up", *LAUNCH, *DATA, *WORK) == 0
    cloud.object("restart_loop.json").unlink()
    assert tpuctl("babysit", *ONE) == 0
    assert sorted(trainers.starts) == [(f"{SLICE}-0", host) for host in range(4)]
    assert len(requested_zones(cloud)) == 1


def test_babysit_without_loop_state_continues_a_training_slice(cloud, trainers):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 6:
            raise KeyboardInterrupt
        if number == 12:
            trainers.codes = {}

    trainers.each_turn = turn
    assert launch() == 130
    cloud.object("restart_loop.json").unlink()
    assert tpuctl("babysit", *ONE) == 0 and len(requested_zones(cloud)) == 1


def test_attempt_numbers_are_unique_without_loop_state(cloud, trainers):
    trainers.codes = dict.fromkeys(range(3), 134)
    assert launch() == 1
    cloud.object("restart_loop.json").unlink()
    trainers.codes = {}
    assert tpuctl("babysit", *ONE) == 0
    created = [line.split()[4] for line in cloud.commands("queued-resources create")]
    assert created == [f"{SLICE}-{attempt}" for attempt in range(4)]


def test_new_max_hours_keeps_the_slice(cloud, trainers):
    assert tpuctl("up", *LAUNCH, *DATA, *WORK) == 0
    assert tpuctl("preflight", *ONE) == 0
    job_spec = cloud.object("attempts/0/job.json")
    assert json.loads(job_spec.read_text())["max_hours"] == 12
    assert launch("--max-hours", "20") == 0
    assert len(requested_zones(cloud)) == 1 and json.loads(job_spec.read_text())["max_hours"] == 20


def test_job_spec_of_another_job_is_not_overwritten(cloud, trainers, capsys):
    assert tpuctl("up", *LAUNCH, *DATA, *WORK) == 0
    assert tpuctl("preflight", *ONE) == 0
    job_spec = cloud.object("attempts/0/job.json")
    changed = job_spec.read_text().replace("pretrain", "finetune")
    job_spec.write_text(changed)
    assert tpuctl("preflight", *ONE) == 1
    assert "another job" in capsys.readouterr().err and job_spec.read_text() == changed


@pytest.mark.slow  # test_failed_deletion_is_repeated_after_suspend is the fast one
def test_done_run_reports_a_slice_that_cannot_be_deleted(cloud, trainers, capsys):
    cloud.script(fail=[{"match": "queued-resources delete", "text": UNAVAILABLE}])
    started_at = Clock.now

    def turn(number: int) -> None:
        assert Clock.now - started_at < 2 * HOUR, "it tries for ever"

    trainers.each_turn = turn
    assert launch() == 1
    assert "done; not deleted after 1 h" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["stop", "down"])
def test_hours_are_not_counted_after_stop_and_down(cloud, trainers, verb):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 8:
            raise KeyboardInterrupt

    trainers.each_turn = turn
    assert launch() == 130
    trainers.each_turn = lambda number: None
    Clock.now += HOUR
    assert tpuctl(verb, *ONE) == 0 and not cloud.slices()
    Clock.now += 20 * HOUR
    assert launch() == 0
    assert HOUR <= cloud.loop()["billed_seconds"] < 1.5 * HOUR
