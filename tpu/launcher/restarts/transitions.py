"""Implements the state transitions that several phases of the restart loop share.

Pure functions, like `restart_policy.decide`.
"""

from collections.abc import Mapping
from dataclasses import replace

from tpu.launcher import TPUCTL
from tpu.launcher.cloud.backend import BILLED_STATUSES, LiveSlice
from tpu.launcher.cloud.error_catalog import classify_error
from tpu.launcher.restarts.loop_types import FOREVER, ActionFailure, Limits, LoopState, Observation
from tpu.protocol import (
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_PREFLIGHT,
    EXIT_SAVED,
    EXIT_TERMINATED,
    describe_exit_code,
)  # fmt: skip

LIST_DELAY_SECONDS = 2 * 60
"""A new slice must appear in listings within this time."""
ZONE_ERRORS = ("quota", "offer")
"""Errors after which no slice can be created in this zone."""
FATAL_ERRORS = ("permission", "auth", "api", "flag")
"""Errors after which no slice can be created in any zone."""
CLEAN_EXITS = {EXIT_DONE, EXIT_SAVED, EXIT_TERMINATED}
_MAX_TURN_SECONDS = 5 * 60
"""Longest time that a turn adds to `LoopState.loop_time`. If more time has passed, the launcher was
suspended or not running: heartbeats may have been missed, so no timeout may expire because of it.
The billed time is counted in full."""


def advance_time(state: LoopState, observation: Observation, wall_time: float) -> LoopState:
    """Advances the clocks of the loop; time without observations does not count for timeouts."""
    elapsed = max(0.0, wall_time - state.wall_time)
    was_suspended, step = elapsed > _MAX_TURN_SECONDS, min(elapsed, _MAX_TURN_SECONDS)
    state = replace(
        state,
        wall_time=wall_time,
        loop_time=state.loop_time + step,
        billed_seconds=state.billed_seconds + (elapsed if state.is_billed else 0.0),
    )
    if was_suspended or not observation.reachable or state.unreachable_since is not None:
        # Hosts and slices were not observed during this time, so it does not count against them.
        shifted = {host: since + step for host, since in state.heartbeat_times.items()}
        degraded_since = None if state.degraded_since is None else state.degraded_since + step
        state = replace(state, heartbeat_times=shifted, degraded_since=degraded_since)
    if was_suspended and state.unreachable_since is not None:
        # Neither was the cloud: nothing is known about whether it could be reached.
        state = replace(state, unreachable_since=state.unreachable_since + step)
    return state


def cloud_unreachable(state: LoopState, limits: Limits) -> LoopState:
    """Does nothing, unless this has lasted until long after all limits: then the loop ends."""
    since = state.loop_time if state.unreachable_since is None else state.unreachable_since
    state = replace(state, unreachable_since=since)
    timeout = limits.unreachable_timeout_hours * 3600
    if state.is_billed:
        over_limit = state.billed_seconds >= limits.max_hours * 3600 + timeout
    else:
        over_limit = seconds_without_slice(state) >= limits.wait_hours * 3600 + timeout
    if over_limit and state.loop_time - since >= timeout:
        reason = (
            "the cloud cannot be reached any more; a slice that still exists costs money, so run "
            f"`{TPUCTL} down`"
        )
        return replace(state, phase="ended", exit_code=EXIT_FAILED, reason=reason)
    return state


def record_observation(state: LoopState, observation: Observation) -> LoopState:
    """Records the newest checkpoint and whether a slice is billed."""
    steps = [each.step for each in observation.hosts if each.step is not None]
    return replace(
        state,
        unreachable_since=None,
        is_billed=any(each.status in BILLED_STATUSES for each in observation.slices),
        step=max([state.step, *steps]),
    )


def adopt_newer_attempt(state: LoopState, observation: Observation) -> LoopState:
    """Continues with a newer attempt that exists, created by a loop that has died since."""
    newest_attempt = max((each.attempt for each in observation.slices), default=-1)
    if newest_attempt <= state.attempt:
        return state
    zone = next(each.zone for each in observation.slices if each.attempt == newest_attempt)
    phase = "draining" if state.phase == "draining" else "requested"
    return replace(begin_attempt(state, newest_attempt, zone), phase=phase)


def begin_attempt(state: LoopState, attempt: int, zone: str) -> LoopState:
    """Begins a new attempt: a slice was requested in this zone."""
    return replace(
        state,
        phase="requested",
        phase_since=state.loop_time,
        attempt=attempt,
        zone=zone,
        ready_at=None,
        first_exit_at=None,
        degraded_since=None,
        stopping_since=None,
        heartbeats={},
        heartbeat_times={},
        start_tries=0,
        step_at_start=state.step,
    )


def finish(state: LoopState, code: int, reason: str, save_first: bool = False) -> LoopState:
    """Ends the run with that code once no slice is left; `save_first` lets the trainers save."""
    already_finishing = state.phase == "draining" and state.exit_code is not None
    if already_finishing and (code != EXIT_DONE or state.exit_code == EXIT_DONE):
        # The first reason is kept, except when the run turns out to be done after all.
        return state
    save_first = save_first and state.phase == "running"
    return replace(
        state,
        phase="draining",
        phase_since=state.loop_time,
        exit_code=code,
        reason=reason,
        stopping_since=state.loop_time if save_first else None,
    )


def retry(state: LoopState, limits: Limits, reason: str = "", min_delay: float = 0.0) -> LoopState:
    """Deletes all slices, waits, and then begins the next attempt."""
    backoff = backoff_seconds(state.attempts_without_progress + state.creation_failures, limits)
    return replace(
        state,
        phase="draining",
        phase_since=state.loop_time,
        exit_code=None,
        reason=reason or state.reason,
        stopping_since=None,
        not_before=state.loop_time + max(min_delay, backoff),
    )


def slice_lost(
    state: LoopState,
    limits: Limits,
    reason: str,
    *,
    asked_to_stop: bool = False,
    blame_zone: bool = True,
) -> LoopState:
    """Ends an attempt that had a slice; it counts as failed unless it wrote a new checkpoint.

    Args:
      asked_to_stop: the trainers were asked to save and exit, so it does not count.
      blame_zone: block the zone for a while if the slice was lost soon after it was ready.
    """
    progress = state.step > state.step_at_start
    failures = 0 if progress else state.attempts_without_progress + (0 if asked_to_stop else 1)
    lost_early = state.ready_at is not None and state.loop_time - state.ready_at < limits.early_loss
    state = replace(state, attempts_without_progress=failures, without_slice_since=state.loop_time)
    if lost_early and blame_zone:
        state = block_zone(state, limits.zone_cooldown)
    if failures >= limits.max_attempts_without_progress:
        message = f"{failures} attempts in a row have written no new checkpoint; {reason}"
        return finish(state, EXIT_FAILED, message)
    return retry(state, limits, reason)


def block_zone(state: LoopState, seconds: float) -> LoopState:
    """Blocks the current zone for a number of seconds."""
    until = FOREVER if seconds >= FOREVER else state.loop_time + seconds
    return replace(state, blocked_until={**state.blocked_until, state.zone: until})


def creation_failed(state: LoopState, failure: ActionFailure, limits: Limits) -> LoopState:
    """Retries or ends the run after a creation that failed."""
    state = replace(state, reason=failure.message)
    if failure.error_kind == "stockout":
        return retry(block_zone(state, limits.zone_cooldown), limits)
    if failure.error_kind in ZONE_ERRORS:
        return retry(block_zone(state, FOREVER), limits)
    if failure.error_kind in FATAL_ERRORS:
        return finish(state, EXIT_CONFIG, failure.message)
    state = replace(state, creation_failures=state.creation_failures + 1)
    if state.creation_failures >= limits.max_tries:
        return finish(state, EXIT_FAILED, failure.message)
    # The slice may have been created all the same; by then it would appear in the listings.
    return retry(state, limits, min_delay=LIST_DELAY_SECONDS)


def creation_failed_late(state: LoopState, live: LiveSlice, limits: Limits) -> LoopState:
    """Handles a slice that was terminated before it was ready: its creation failed this late."""
    pattern, text = classify_error(live.detail), f"{live.detail} in {live.zone}"
    if pattern.kind in (*ZONE_ERRORS, *FATAL_ERRORS):
        text += f"\n  what to do: {pattern.advice}"
        return creation_failed(
            state, ActionFailure(action="create", error_kind=pattern.kind, message=text), limits
        )
    return retry(block_zone(state, limits.zone_cooldown), limits, text)


def slice_degraded(state: LoopState, live: LiveSlice, limits: Limits, timeout: float) -> LoopState:
    """Waits for a slice that exists but is not ready, until the timeout."""
    since = state.loop_time if state.degraded_since is None else state.degraded_since
    state = replace(state, degraded_since=since)
    if state.loop_time - since < timeout:
        return state
    minutes = (state.loop_time - since) / 60
    return slice_lost(state, limits, f"not ready for {minutes:.0f} minutes: {live.detail}")


def slice_not_ready(state: LoopState, live: LiveSlice | None, limits: Limits) -> LoopState:
    """Handles a slice that was ready and is not ready any more."""
    if live is None:
        return slice_lost(state, limits, f"the slice in {state.zone} is gone")
    if live.status in ("terminated", "deleting", "waiting"):
        return slice_lost(state, limits, f"the slice in {live.zone} was terminated: {live.detail}")
    return slice_degraded(state, live, limits, limits.degraded_timeout)


def hosts_exited(state: LoopState, codes: Mapping[int, int], limits: Limits) -> LoopState:
    """Handles hosts that have exited, with codes after which the run can be retried."""
    distinct_codes = set(codes.values())
    codes_text = ", ".join(f"host {host}: {code}" for host, code in sorted(codes.items()))
    if EXIT_FAILED in distinct_codes:
        host = next(host for host, code in sorted(codes.items()) if code == EXIT_FAILED)
        if state.step <= state.step_at_start:
            return finish(
                state, EXIT_FAILED, f"host {host}: {describe_exit_code(EXIT_FAILED)} (code 1)"
            )
        return slice_lost(
            state, limits, f"host {host}: {describe_exit_code(EXIT_FAILED)}", blame_zone=False
        )
    if distinct_codes <= CLEAN_EXITS and distinct_codes != {EXIT_DONE}:
        return slice_lost(state, limits, f"saved and exited ({codes_text})", asked_to_stop=True)
    if EXIT_PREFLIGHT in distinct_codes:
        return slice_lost(
            state, limits, f"{describe_exit_code(EXIT_PREFLIGHT)} ({codes_text})", blame_zone=False
        )
    if distinct_codes == {EXIT_DONE}:
        return slice_lost(
            state, limits, f"exited without DONE.json ({codes_text})", blame_zone=False
        )
    return slice_lost(state, limits, f"exited ({codes_text})", blame_zone=False)


def exit_wait_seconds(codes: Mapping[int, int], limits: Limits) -> float:
    """Returns how long to wait, after the first exit, for the other hosts or for DONE.json."""
    distinct_codes = set(codes.values())
    if len(codes) == limits.hosts:
        return limits.exit_grace if distinct_codes == {EXIT_DONE} else 0.0
    # Hosts that are saving, or copying their last files, need more time.
    return limits.heartbeat_timeout if distinct_codes <= CLEAN_EXITS else limits.exit_grace


def update_heartbeats(state: LoopState, observation: Observation) -> LoopState:
    """Records which hosts have sent a new heartbeat, and when."""
    new_heartbeats = {
        str(each.host): each.heartbeat
        for each in observation.hosts
        if each.heartbeat and state.heartbeats.get(str(each.host)) != each.heartbeat
    }
    since = {**state.heartbeat_times, **dict.fromkeys(new_heartbeats, state.loop_time)}
    return replace(state, heartbeats={**state.heartbeats, **new_heartbeats}, heartbeat_times=since)


def backoff_seconds(times: int, limits: Limits) -> float:
    """Returns the delay before a retry: 15 s, 30 s, ... up to ten minutes."""
    return min(limits.max_backoff, limits.initial_backoff * 2 ** min(times, 20))


def seconds_without_slice(state: LoopState) -> float:
    """Returns the seconds for which the run has had no slice."""
    return state.loop_time - state.without_slice_since
