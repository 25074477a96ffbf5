"""Steps of the restart loop that more than one of its phases takes. Pure, as `decide` is."""

from collections.abc import Mapping
from dataclasses import replace

from tpu.launcher.backend import LiveSlice
from tpu.launcher.messages import recognise
from tpu.launcher.states import FOREVER, Failure, Limits, Loop, Observation
from tpu.protocol import (
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_PREFLIGHT,
    EXIT_SAVED,
    EXIT_TERMINATED,
    meaning,
)  # fmt: skip

LISTED = 2 * 60
"""Seconds until a new slice must be seen."""
NO_ZONE = ("quota", "offer")
"""Why a zone will not have what we need."""
NOWHERE = ("permission", "auth", "api", "flag")
"""Why no zone will."""
WELL = {EXIT_DONE, EXIT_SAVED, EXIT_TERMINATED}


def begin(state: Loop, incarnation: int, zone: str) -> Loop:
    """A new life."""
    return replace(
        state,
        phase="asked",
        phase_since=state.now,
        incarnation=incarnation,
        zone=zone,
        ready_at=None,
        exit_at=None,
        unwell_at=None,
        stopping_at=None,
        beats={},
        beats_since={},
        tries=0,
        step_before=state.step,
    )


def leave(state: Loop, code: int, reason: str, gently: bool = False) -> Loop:
    """The run ends with that code as soon as no slice is left; gently: the trainers save first."""
    leaves = state.phase == "leaving" and state.outcome is not None
    if leaves and (code != EXIT_DONE or state.outcome == EXIT_DONE):
        return state  # the first reason stands, unless the run is done after all
    gently = gently and state.phase == "running"
    return replace(
        state,
        phase="leaving",
        phase_since=state.now,
        outcome=code,
        reason=reason,
        stopping_at=state.now if gently else None,
    )


def again(state: Loop, limits: Limits, reason: str = "", at_least: float = 0.0) -> Loop:
    """All slices go, and then, after a pause, the next life begins."""
    return replace(
        state,
        phase="leaving",
        phase_since=state.now,
        outcome=None,
        reason=reason or state.reason,
        stopping_at=None,
        not_before=state.now + max(at_least, backoff(state.failures + state.refusals, limits)),
    )


def lost(
    state: Loop, limits: Limits, reason: str, *, free: bool = False, blame_zone: bool = True
) -> Loop:
    """A life that was paid for is over: it counts as a failure unless it brought a checkpoint.

    Args:
      free: it was asked to save and leave.
      blame_zone: the zone is left alone for a while if this came soon after the slice was ready.
    """
    progress = state.step > state.step_before
    failures = 0 if progress else state.failures + (0 if free else 1)
    early = state.ready_at is not None and state.now - state.ready_at < limits.early
    state = replace(state, failures=failures, without_slice_since=state.now)
    if early and blame_zone:
        state = block(state, limits.cool_down)
    if failures >= limits.no_progress:
        return leave(
            state, EXIT_FAILED, f"{failures} lives in a row brought no new checkpoint; {reason}"
        )
    return again(state, limits, reason)


def block(state: Loop, seconds: float) -> Loop:
    """Leaves the current zone alone for so long."""
    until = FOREVER if seconds >= FOREVER else state.now + seconds
    return replace(state, blocked={**state.blocked, state.zone: until})


def refused(state: Loop, failure: Failure, limits: Limits) -> Loop:
    """After a creation that failed."""
    state = replace(state, reason=failure.text)
    if failure.kind == "stockout":
        return again(block(state, limits.cool_down), limits)
    if failure.kind in NO_ZONE:
        return again(block(state, FOREVER), limits)
    if failure.kind in NOWHERE:
        return leave(state, EXIT_CONFIG, failure.text)
    state = replace(state, refusals=state.refusals + 1)
    if state.refusals >= limits.ssh_tries:
        return leave(state, EXIT_FAILED, failure.text)
    # Nobody knows whether it was made all the same: it would be seen by then.
    return again(state, limits, at_least=LISTED)


def not_given(state: Loop, live: LiveSlice, limits: Limits) -> Loop:
    """What was asked for has ended unused: a creation may be refused that late, too."""
    known, text = recognise(live.detail), f"{live.detail} in {live.zone}"
    if known.kind in (*NO_ZONE, *NOWHERE):
        text += f"\n  what to do: {known.advice}"
        return refused(state, Failure(action="create", kind=known.kind, text=text), limits)
    return again(block(state, limits.cool_down), limits, text)


def unwell(state: Loop, live: LiveSlice, limits: Limits, patience: float) -> Loop:
    """Not ready, but there: waits for a while."""
    since = state.now if state.unwell_at is None else state.unwell_at
    state = replace(state, unwell_at=since)
    if state.now - since < patience:
        return state
    minutes = (state.now - since) / 60
    return lost(state, limits, f"not ready for {minutes:.0f} minutes: {live.detail}")


def not_ready(state: Loop, live: LiveSlice | None, limits: Limits) -> Loop:
    """What was ready is not any more."""
    if live is None:
        return lost(state, limits, f"the slice in {state.zone} is gone")
    if live.status in ("dead", "deleting", "waiting"):
        return lost(state, limits, f"the slice in {live.zone} was taken away: {live.detail}")
    return unwell(state, live, limits, limits.unwell)


def exited(state: Loop, codes: Mapping[int, int], limits: Limits) -> Loop:
    """Some or all hosts have ended, with codes that may be repeated."""
    found = set(codes.values())
    said = ", ".join(f"host {host}: {code}" for host, code in sorted(codes.items()))
    if EXIT_FAILED in found:
        host = next(host for host, code in sorted(codes.items()) if code == EXIT_FAILED)
        if state.step <= state.step_before:
            return leave(state, EXIT_FAILED, f"host {host}: {meaning(EXIT_FAILED)} (code 1)")
        return lost(state, limits, f"host {host}: {meaning(EXIT_FAILED)}", blame_zone=False)
    if found <= WELL and found != {EXIT_DONE}:
        return lost(state, limits, f"saved and left ({said})", free=True)
    if EXIT_PREFLIGHT in found:
        return lost(state, limits, f"{meaning(EXIT_PREFLIGHT)} ({said})", blame_zone=False)
    if found == {EXIT_DONE}:
        return lost(state, limits, f"ended without DONE.json ({said})", blame_zone=False)
    return lost(state, limits, f"ended ({said})", blame_zone=False)


def patience(codes: Mapping[int, int], limits: Limits) -> float:
    """How long the first host that has ended waits for the others, or for DONE.json."""
    found = set(codes.values())
    if len(codes) == limits.hosts:
        return limits.settle if found == {EXIT_DONE} else 0.0
    # Those that save or copy their last files take their time.
    return limits.quiet if found <= WELL else limits.settle


def beats(state: Loop, seen: Observation) -> Loop:
    """Notes which hosts have said something new."""
    new = {
        str(each.host): each.beat
        for each in seen.hosts
        if each.beat and state.beats.get(str(each.host)) != each.beat
    }
    since = {**state.beats_since, **dict.fromkeys(new, state.now)}
    return replace(state, beats={**state.beats, **new}, beats_since=since)


def backoff(times: int, limits: Limits) -> float:
    """15 s, 30 s, ... up to ten minutes."""
    return min(limits.most_backoff, limits.backoff * 2 ** min(times, 20))


def without(state: Loop) -> float:
    """Seconds without a slice, at this stretch."""
    return state.now - state.without_slice_since
