"""Tests the restart policy with random histories of a cloud: 600, or 10,000 if slow tests run.

`decide` sees the simulated cloud only through `Observation`. Slices are granted late, preempted or
degraded; trainers exit with any code or stop reporting; observations fail once or for hours; slices
cannot be deleted; the launcher is suspended, its clock is set back, or it dies between saving its
state and acting. Covers tpu/launcher/restarts/restart_policy.py and transitions.py.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tpu.launcher.cloud.backend import BILLED_STATUSES, LiveSlice
from tpu.launcher.restarts.loop_types import (
    Action,
    ActionFailure,
    CreateSlice,
    HostObservation,
    Limits,
    LoopState,
    Observation,
    StartTrainers,
    StopTrainers,
)
from tpu.launcher.restarts.restart_policy import decide

HISTORIES, SLOW_HISTORIES = 600, 10_000
TURNS = 4000
HOSTS = 4
CODES = (0, 1, 2, 64, 75, 76, 78, 134, 137, 143, 3)
FATAL = {2, 64, 78}
CREATE_ERRORS = ("stockout", "quota", "permission", "network", "other")
NO_QUOTA = "queued resource FAILED, Quota 'TPUV6E' exhausted"
DENIED = "queued resource FAILED, PERMISSION_DENIED: Permission 'tpu.nodes.create' denied"
START_ERRORS = ("ssh", "preflight", "config", "network", "other")


@dataclass
class Made:
    """Holds the true state of a slice."""

    zone: str
    status: Any = "waiting"
    started: bool = False
    deleting_for: int = 0
    heartbeats: dict[int, int] = field(default_factory=dict)
    exits: dict[int, int] = field(default_factory=dict)
    step: int | None = None
    detail: str = ""


class Cloud:
    """Simulates a random cloud; `temper` is the probability of failures."""

    def __init__(self, seed: int):
        self.dice = random.Random(seed)
        self.temper = self.dice.choice([0.0, 0.02, 0.1, 0.4])
        self.slices: dict[int, Made] = {}
        self.clock = 1e9
        self.truth_seconds = 0.0
        self.billed = 0.0
        self.step = 0
        self.failure: ActionFailure | None = None
        self.done = self.stop = False
        self.keep = self.happens(0.3)
        self.creations: list[int] = []
        self.late: dict[int, tuple[float, str]] = {}
        self.stuck = self.happens(self.temper / 4)
        """Slices cannot be deleted."""
        self.dark_until = 0.0
        self.in_vain = 0.0
        """Seconds of turns, not of sleep, since something was seen."""
        self.known = True
        """The last look was seen, and all that was decided then was done."""
        self.excused = 0.0
        """Seconds of slices that the loop could not know of, or could do nothing about."""

    def happens(self, likely: float) -> bool:
        return self.dice.random() < likely

    def wait(self) -> None:
        """Lets time pass, in which every slice may change."""
        seconds = self.dice.choice([15.0, 30.0, 60.0])
        slept = self.happens(self.temper / 10)
        if slept:
            seconds = self.dice.choice([400.0, 3600.0, 36_000.0])
        set_back = self.happens(self.temper / 20)
        self.truth_seconds += seconds
        self.in_vain += 0.0 if slept else seconds
        if any(each.status in BILLED_STATUSES for each in self.slices.values()):
            self.billed += seconds
            self.excused += seconds if slept or set_back or not self.known else 0.0
        self.clock += -self.dice.choice([5, 500]) if set_back else seconds
        self.stop = self.stop or self.happens(self.temper / 200)
        for number, made in list(self.slices.items()):
            self.befalls(number, made)
        for number, (when, zone) in list(self.late.items()):
            if self.truth_seconds >= when:
                self.slices[number] = Made(zone)
                del self.late[number]
        if self.creations and self.happens(self.temper / 200):
            # Somebody else acted: an old slice is back, or another launcher created one.
            number = self.dice.choice([0, max(self.creations) + 1])
            if number not in self.slices:
                self.creations.append(number)
                self.slices[number] = Made("us-central1-b", status="ready")

    def befalls(self, number: int, made: Made) -> None:
        bad = self.happens(self.temper / 5)
        if made.status == "deleting":
            made.deleting_for += 1
            if made.deleting_for > self.dice.choice([0, 2, 5]):
                del self.slices[number]
            return
        if made.status in ("waiting", "starting"):
            if bad:
                made.status = self.dice.choice(["terminated", "degraded", "waiting"])
                made.detail = self.dice.choice(["", NO_QUOTA, DENIED])
            elif self.happens(0.3):
                made.status = "starting" if made.status == "waiting" else "ready"
            return
        if bad:
            made.status = self.dice.choice(["terminated", "degraded", "gone", "starting", "ready"])
            if made.status == "gone":
                del self.slices[number]
                return
        if made.status == "degraded" and self.happens(0.3):
            made.status = "ready"
        if made.started and made.status == "ready":
            self.trains(made)

    def trains(self, made: Made) -> None:
        for host in range(HOSTS):
            if host not in made.exits and not self.happens(self.temper / 4):
                made.heartbeats[host] = made.heartbeats.get(host, 0) + 1
        if len(made.exits) == 0 and self.happens(0.3):
            self.step += 10
            made.step = self.step
        if self.happens(self.temper / 20):
            code = self.dice.choice(CODES)
            for host in range(HOSTS):
                if self.happens(0.8):
                    made.exits.setdefault(host, self.dice.choice([code, code, 134]))
        if not made.exits and self.happens(0.01):
            made.exits = dict.fromkeys(range(HOSTS), 0)
            self.done = not self.happens(self.temper)

    def look(self, current: int) -> Observation:
        failure, self.failure = self.failure, None
        if self.happens(self.temper / 400):
            self.dark_until = self.truth_seconds + self.dice.choice([600.0, 7200.0, 100_000.0])
        if self.truth_seconds < self.dark_until or self.happens(self.temper / 3):
            self.failure, self.known = failure, False
            return Observation(reachable=False)
        self.in_vain, self.known = 0.0, True
        newest = max([current, *self.slices])
        made = self.slices.get(newest)
        return Observation(
            slices=tuple(live(number, each) for number, each in sorted(self.slices.items())),
            hosts=tuple(
                HostObservation(
                    host=host,
                    heartbeat=str(made.heartbeats.get(host, "")),
                    step=made.step,
                    exit_code=made.exits.get(host),
                )
                for host in range(HOSTS)
                if host in made.heartbeats or host in made.exits
            )
            if made
            else (),
            trainers_started=bool(made and made.started),
            done=self.done,
            stop_requested=self.stop,
            keep_slice=self.stop and self.keep,
            failure=failure,
        )

    def do(self, action: Action) -> None:
        if isinstance(action, CreateSlice):
            self.creations.append(action.attempt)
            if self.happens(self.temper):
                kind: Any = self.dice.choice(CREATE_ERRORS)
                self.failure = ActionFailure(action="create", error_kind=kind, message=kind)
                if kind in ("network", "other") and self.happens(0.2):
                    # The slice is created despite the error, and becomes visible later.
                    when = self.truth_seconds + self.dice.choice([0.0, 30.0, 90.0])
                    self.late[action.attempt] = (when, action.zone)
                return
            self.slices[action.attempt] = Made(action.zone)
        elif isinstance(action, StartTrainers):
            made = self.slices.get(action.live.attempt)
            if made and self.happens(self.temper):
                kind: Any = self.dice.choice(START_ERRORS)
                self.failure = ActionFailure(
                    action="start", error_kind=kind, message=kind, exit_code=78
                )
                made.started = made.started or self.happens(0.2)
            elif made:
                made.started = True
        elif isinstance(action, StopTrainers):
            made = self.slices.get(action.live.attempt)
            if made and made.started and not self.happens(self.temper):
                for host in range(HOSTS):
                    made.exits.setdefault(host, 75)
        elif self.stuck or self.happens(self.temper):
            self.known = False
        elif action.live.attempt in self.slices:
            self.slices[action.live.attempt].status = "deleting"


def live(number: int, made: Made) -> LiveSlice:
    return LiveSlice(
        attempt=number,
        zone=made.zone,
        status=made.status,
        detail=made.detail,
        ssh_targets=("m",),
    )


def check_turn(
    before: LoopState, after: LoopState, seen: Observation, actions: tuple, cloud: Cloud
) -> None:
    """Asserts what must be true after every turn."""
    if not seen.reachable:
        assert not actions, "acted blindly"
    alive = {each.attempt for each in seen.slices}
    for action in actions:
        if isinstance(action, CreateSlice):
            assert not alive, "made a second slice"
            assert not cloud.slices and not cloud.late, "made a second slice, in truth"
            assert action.attempt > max([-1, *cloud.creations]), "used a name twice"
            assert before.exit_code is None and not seen.done and not seen.stop_requested
        else:
            assert action.live.attempt in alive, "touched what it did not see"
        if isinstance(action, StartTrainers):
            assert alive == {action.live.attempt}, "trained on a second slice"
    assert after.billed_seconds >= before.billed_seconds and after.loop_time >= before.loop_time
    if after.reason.startswith("no slice was available") and not before.ended:
        granted = [each for each in seen.slices if each.status in BILLED_STATUSES]
        assert before.phase == "draining" or not granted, "gave back what it had waited for"
    if seen.keep_slice and before.phase != "draining" and not seen.done:
        assert not actions, "touched what is to be kept"
    there = [(each.attempt, each.status, each.detail) for each in seen.slices]
    if before.phase == "requested" and there == [(before.attempt, "terminated", DENIED)]:
        assert after.exit_code is not None, "asks again for what it may not have"
    codes = {each.exit_code for each in seen.hosts}
    if before.phase == "running" and seen.reachable and codes & FATAL and not seen.done:
        assert after.exit_code is not None, "went on after a code that must not be repeated"


def history(seed: int, limits: Limits) -> tuple[LoopState, Cloud]:
    """Simulates one run to its end."""
    cloud = Cloud(seed)
    state = LoopState(wall_time=cloud.clock)
    for _ in range(TURNS):
        cloud.wait()
        seen = cloud.look(state.attempt)
        before = state
        state, actions = decide(state, seen, cloud.clock, limits)
        check_turn(before, state, seen, actions, cloud)
        for action in actions:
            if cloud.happens(cloud.temper / 50):
                cloud.known = False
                break  # this loop died here; the next one continues from the saved state
            cloud.do(action)
        if state.ended:
            assert not decide(state, seen, cloud.clock + 1, limits)[1]
            return state, cloud
    raise AssertionError(f"seed {seed} never ended: {state}")


@pytest.mark.parametrize(
    "seeds",
    [range(HISTORIES), pytest.param(range(HISTORIES, SLOW_HISTORIES), marks=pytest.mark.slow)],
    ids=str,
)
def test_random_histories_keep_the_rules(seeds: range):
    ends: dict[int | None, int] = {}
    for seed in seeds:
        zones = ("us-central1-b", "us-east1-d", "us-east5-a")[: 1 + seed % 3]
        limits = Limits(hosts=HOSTS, zones=zones, max_hours=0.2 + seed % 5 / 4, wait_hours=1.0)
        state, cloud = history(seed, limits)
        ends[state.exit_code] = ends.get(state.exit_code, 0) + 1
        assert state.exit_code is not None and state.reason
        if state.exit_code == 0:
            assert cloud.done and not cloud.slices, f"seed {seed} is not done: {state}"
        unreachable = state.reason.startswith("the cloud cannot")
        if unreachable:
            assert cloud.in_vain >= limits.unreachable_timeout_hours * 3600, (
                f"seed {seed} gave up: {state}"
            )
        keeps_slice = state.reason.endswith("the slice is kept")
        assert not keeps_slice or (cloud.stop and cloud.keep)
        is_explained = unreachable or keeps_slice or "not deleted" in state.reason
        assert is_explained or not cloud.slices, f"seed {seed} left {cloud.slices}: {state}"
        check_bill(seed, state, cloud, limits)
    assert {0, 1, 75, 78} <= set(ends), f"the histories are too tame: {ends}"


def check_bill(seed: int, state: LoopState, cloud: Cloud, limits: Limits) -> None:
    """Asserts that the limit holds, except for turns without access to the cloud, and sleep."""
    assert cloud.billed - cloud.excused <= limits.max_hours * 3600 + 120, f"seed {seed}: {state}"


def test_attempts_without_progress_are_limited():
    """Tests that three attempts in a row without a checkpoint end the run."""

    class Barren(Cloud):
        def trains(self, made: Made) -> None:
            made.exits = dict.fromkeys(range(HOSTS), 134)

    for seed in range(100):
        limits = Limits(hosts=HOSTS, zones=("us-central1-b",), max_hours=50.0)
        cloud = Barren(seed)
        state = LoopState(wall_time=cloud.clock)
        cloud.temper, cloud.stuck = 0.0, False
        for _ in range(TURNS):
            cloud.wait()
            seen = cloud.look(state.attempt)
            state, actions = decide(state, seen, cloud.clock, limits)
            for action in actions:
                cloud.do(action)
            if state.ended:
                break
        assert len(cloud.creations) == limits.max_attempts_without_progress and state.exit_code == 1


def test_clock_set_back_does_not_change_timers():
    limits = Limits(hosts=HOSTS, zones=("us-central1-b",), max_hours=1.0)
    state = LoopState(wall_time=1000.0, billed_seconds=7.0, is_billed=True)
    after, _ = decide(state, Observation(), -1e6, limits)
    assert (after.loop_time, after.billed_seconds) == (state.loop_time, 7.0)
    again, _ = decide(replace(after, is_billed=True), Observation(), -1e6 + 30, limits)
    assert again.loop_time == 30.0 and again.billed_seconds == 37.0
