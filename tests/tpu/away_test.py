"""A launcher that was away, asleep or ended or forgetful, and goes on with what is there."""

import json

import pytest

from tests.tpu.cloud import DATA, LAUNCH, SLICE, WORK, Clock, pod
from tests.tpu.scenario_test import ONE, asked, launch

HOUR = 3600.0
UNAVAILABLE = "UNAVAILABLE: The service is currently unavailable."


def test_a_laptop_that_wakes_without_a_network_gives_its_slice_back(cloud, trainers, capsys):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 8:
            Clock.now += 4 * HOUR
            cloud.script(fail=[{"match": "storage ls", "times": 3, "text": UNAVAILABLE}])

    trainers.each_turn = turn
    assert launch("--max-hours", "2") == 75
    said = capsys.readouterr().err
    assert said.count("cannot look") == 3 and "limit of 2.00 hours" in said
    assert not cloud.slices()


def test_a_cloud_that_cannot_be_asked_for_an_hour_beyond_all_limits_is_given_up(
    cloud, trainers, capsys
):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 8:
            cloud.script(fail=[{"match": "storage ls", "text": UNAVAILABLE}])

    trainers.each_turn = turn
    begun = Clock.now
    assert launch("--max-hours", "2") == 1
    assert "the cloud cannot be asked any more" in capsys.readouterr().err
    assert 3 * HOUR <= Clock.now - begun < 3.2 * HOUR


def test_a_slice_that_was_granted_while_nobody_looked_is_used(cloud, trainers):
    cloud.script(slices={"*": {"queue": "WAITING_FOR_RESOURCES"}})

    def turn(number: int) -> None:
        if number == 3:
            raise KeyboardInterrupt

    trainers.each_turn = turn
    assert launch() == 130
    Clock.now += 30 * HOUR
    cloud.script()
    assert pod("babysit", *ONE) == 0
    assert len(asked(cloud)) == 1 and not cloud.slices()


def test_a_pause_does_not_count_as_waiting(cloud, trainers):
    cloud.script(slices={"*": {"queue": "WAITING_FOR_RESOURCES"}})

    def turn(number: int) -> None:
        if number == 3:
            Clock.now += 30 * HOUR
        if number == 9:
            cloud.script()

    trainers.each_turn = turn
    assert launch() == 0 and len(asked(cloud)) == 1


def test_a_deletion_that_nobody_watched_is_asked_for_again(cloud, trainers):
    trainers.codes = {0: 2}
    cloud.script(
        fail=[{"match": "queued-resources delete", "times": 1, "text": UNAVAILABLE}],
    )

    def turn(number: int) -> None:
        if len(cloud.commands("queued-resources delete")) == 1:
            Clock.now += 3 * HOUR

    trainers.each_turn = turn
    assert launch() == 2 and not cloud.slices()


def test_without_its_memory_it_starts_a_slice_that_is_there(cloud, trainers):
    assert pod("up", *LAUNCH, *DATA, *WORK) == 0
    cloud.object("babysit.json").unlink()
    assert pod("babysit", *ONE) == 0
    assert sorted(trainers.starts) == [(f"{SLICE}-0", host) for host in range(4)]
    assert len(asked(cloud)) == 1


def test_without_its_memory_it_goes_on_with_a_slice_that_trains(cloud, trainers):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 6:
            raise KeyboardInterrupt
        if number == 12:
            trainers.codes = {}

    trainers.each_turn = turn
    assert launch() == 130
    cloud.object("babysit.json").unlink()
    assert pod("babysit", *ONE) == 0 and len(asked(cloud)) == 1


def test_without_its_memory_no_life_has_an_old_ones_number(cloud, trainers):
    trainers.codes = dict.fromkeys(range(3), 134)
    assert launch() == 1
    cloud.object("babysit.json").unlink()
    trainers.codes = {}
    assert pod("babysit", *ONE) == 0
    created = [line.split()[4] for line in cloud.commands("queued-resources create")]
    assert created == [f"{SLICE}-{life}" for life in range(4)]


def test_another_limit_does_not_cost_the_slice(cloud, trainers):
    assert pod("up", *LAUNCH, *DATA, *WORK) == 0
    assert pod("preflight", *ONE) == 0
    order = cloud.object("incarnations/0/order.json")
    assert json.loads(order.read_text())["max_hours"] == 12
    assert launch("--max-hours", "20") == 0
    assert len(asked(cloud)) == 1 and json.loads(order.read_text())["max_hours"] == 20


def test_the_order_of_another_task_is_not_overwritten(cloud, trainers, capsys):
    assert pod("up", *LAUNCH, *DATA, *WORK) == 0
    assert pod("preflight", *ONE) == 0
    order = cloud.object("incarnations/0/order.json")
    changed = order.read_text().replace("pretrain", "finetune")
    order.write_text(changed)
    assert pod("preflight", *ONE) == 1
    assert "another task" in capsys.readouterr().err and order.read_text() == changed


def test_a_slice_that_cannot_be_deleted_is_told_of_when_the_run_is_done(cloud, trainers, capsys):
    cloud.script(fail=[{"match": "queued-resources delete", "text": UNAVAILABLE}])
    begun = Clock.now

    def turn(number: int) -> None:
        assert Clock.now - begun < 2 * HOUR, "it tries for ever"

    trainers.each_turn = turn
    assert launch() == 1
    assert "done; still there after 1 h of deleting" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["stop", "down"])
def test_a_slice_that_was_given_back_by_hand_is_not_counted_on(cloud, trainers, verb):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 8:
            raise KeyboardInterrupt

    trainers.each_turn = turn
    assert launch() == 130
    trainers.each_turn = lambda number: None
    Clock.now += HOUR
    assert pod(verb, *ONE) == 0 and not cloud.slices()
    Clock.now += 20 * HOUR
    assert launch() == 0
    assert HOUR <= cloud.loop()["billed"] < 1.5 * HOUR
