"""Tests the rules of the restart loop on random sequences of events.

Covers tpu/restart_policy.py; tests/tpu/launch_test.py tests each rule with a fake cloud.
"""

import random
from dataclasses import replace

import pytest

from tpu.job import EXIT_CODES
from tpu.restart_policy import Action, History, Limits, Observation, decide

LIMITS = Limits(hosts=4, max_hours=12.0, wait_hours=24.0)


class Cloud:
    """Simulates a cloud that loses slices, refuses requests and fails trainers at random."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.slice = "absent"
        self.progress = 0
        self.codes: dict[int, int] = {}
        self.is_started = False

    def advance(self) -> None:
        """Lets one random event take place."""
        event = self.random.random()
        follows = {"waiting": "starting", "starting": "ready", "deleting": "absent"}
        if self.slice in follows and event < 0.5:
            self.slice = follows[self.slice]
        elif self.slice in ("starting", "ready") and event > 0.97:
            self.slice = "lost"
        elif self.is_started and self.slice == "ready" and event < 0.3:
            self.progress += 10
        elif self.is_started and self.slice == "ready" and event < 0.34:
            code = self.random.choice([*EXIT_CODES, 99])
            hosts = range(4) if code == 0 else [self.random.randrange(4)]
            self.codes |= {host: code for host in hosts}

    def act(self, action: Action) -> None:
        """Applies an action; fails if it is not allowed in this state."""
        if action == "create":
            assert self.slice == "absent", "a run would have two slices"
            self.codes, self.is_started = {}, False
            if self.random.random() < 0.9:  # else the request is lost
                self.slice = "waiting"
        elif action == "start":
            assert self.slice == "ready"
            self.is_started = True
        elif action == "delete":
            assert self.slice not in ("absent", "deleting")
            self.slice = "deleting"
        elif action == "save":
            assert self.is_started


@pytest.mark.parametrize("seed", range(100))
def test_every_run_ends_without_a_forbidden_action(seed: int):
    cloud, history, now = Cloud(seed), History(), 1e9
    reasons: list[str] = []
    for _ in range(20_000):
        now += cloud.random.choice([30, 30, 30, 600])
        cloud.advance()
        seen = Observation(slice=cloud.slice, exit_codes=cloud.codes, progress=cloud.progress)  # type: ignore[arg-type]
        history, action = decide(history, seen, LIMITS, now)
        if history.exit_code is not None:
            break
        assert action not in ("end", "save")
        cloud.act(action)
        if action == "start":
            history = replace(history, phase="training", phase_time=now)
        reasons.append(action)
    assert history.exit_code is not None, "the run never ends"
    assert history.reason
    assert history.billed_seconds <= 12 * 3600
    if history.exit_code == 0:
        assert cloud.codes == dict.fromkeys(range(4), 0)


def training(**fields: object) -> History:
    """Returns the history of an attempt that trains since ten minutes."""
    plain = {"attempt": 2, "phase": "training", "phase_time": 1e9, "time": 1e9, "progress": 40}
    return History(**{**plain, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [75, 143])
def test_saved_attempts_do_not_count(code: int):
    seen = Observation(slice="ready", exit_codes=dict.fromkeys(range(4), code), progress=40)
    history, action = decide(training(unproductive=2), seen, LIMITS, 1e9 + 600)
    assert action == "delete" and history.unproductive == 2 and history.exit_code is None


def test_new_checkpoint_resets_the_count():
    seen = Observation(slice="lost", progress=50)
    history, action = decide(training(unproductive=2), seen, LIMITS, 1e9 + 600)
    assert (action, history.unproductive, history.progress) == ("delete", 0, 50)


def test_one_exit_waits_for_the_other_hosts():
    seen = Observation(slice="ready", exit_codes={3: 134}, progress=40)
    history, action = decide(training(), seen, LIMITS, 1e9 + 600)
    assert action == "wait"
    history, action = decide(history, seen, LIMITS, 1e9 + 880)
    assert action == "wait"
    assert decide(history, seen, LIMITS, 1e9 + 900)[1] == "delete"


def test_limit_gives_time_to_save():
    history = training(billed_seconds=12 * 3600 - 640)
    assert decide(history, Observation(slice="ready"), LIMITS, 1e9 + 30)[1] == "wait"
    ended, action = decide(history, Observation(slice="ready"), LIMITS, 1e9 + 60)
    assert (ended.exit_code, action) == (75, "save")


def test_time_in_the_queue_is_not_billed():
    history = training(phase="queued")
    history, action = decide(history, Observation(slice="waiting"), LIMITS, 1e9 + 7200)
    assert action == "wait" and history.billed_seconds == 0
    history, action = decide(history, Observation(slice="ready"), LIMITS, 1e9 + 7230)
    assert action == "start" and history.billed_seconds == 30


def test_clock_that_is_set_back_bills_nothing():
    history, _ = decide(training(), Observation(slice="ready"), LIMITS, 1e9 - 3600)
    assert history.billed_seconds == 0
