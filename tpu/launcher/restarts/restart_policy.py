"""Decides what the restart loop does next, as a pure function of state, observation and time.

The rules, in order of precedence:
1. In a turn in which something could not be observed, nothing is created, stopped or deleted.
2. A run never uses two slices: slices of earlier attempts are deleted before one is created or
   used. An attempt that is already training goes on meanwhile.
3. Exit codes 2, 64 and 78 end the run, because the same command would fail in the same way. So does
   code 1, unless this attempt has written a new checkpoint.
4. --max-hours and --max-usd end the run; the trainers get time to save.
5. Everything else is retried. Three attempts in a row without a new checkpoint end the run. An
   attempt that was asked to save and exit (code 75) does not count.
6. A zone that has no capacity, or preempts a slice soon after it was ready, is not used for half an
   hour.
"""

from dataclasses import replace

from tpu.launcher import TPUCTL
from tpu.launcher.cloud.backend import LiveSlice
from tpu.launcher.restarts.loop_types import (
    FOREVER,
    Action,
    CreateSlice,
    DeleteSlice,
    Limits,
    LoopState,
    Observation,
    StartTrainers,
    StopTrainers,
    Turn,
)
from tpu.launcher.restarts.transitions import (
    FATAL_ERRORS,
    LIST_DELAY_SECONDS,
    adopt_newer_attempt,
    advance_time,
    backoff_seconds,
    begin_attempt,
    block_zone,
    cloud_unreachable,
    creation_failed,
    creation_failed_late,
    exit_wait_seconds,
    finish,
    hosts_exited,
    record_observation,
    retry,
    seconds_without_slice,
    slice_degraded,
    slice_lost,
    slice_not_ready,
    update_heartbeats,
)
from tpu.protocol import (
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_SAVED,
    FATAL_EXIT_CODES,
    describe_exit_code,
)


def decide(state: LoopState, observation: Observation, wall_time: float, limits: Limits) -> Turn:
    """Returns the next state and the actions of one turn of the restart loop.

    The phases of `LoopState`, and the actions and events between them:

                    CreateSlice               slice ready               StartTrainers
         +------+ -------------> +-----------+ ---------> +-------+ ----------------> +---------+
    ---> | idle |                | requested |            | ready |                   | running |
         +------+                +-----------+            +-------+                   +---------+
             ^                         |                      |                            |
             |                         | creation failed      | slice lost, start failed   | exited,
             |                         v                      v                            v lost
             |                   +--------------------------------------------------------------+
             +------------------ | draining: StopTrainers, DeleteSlice until no slice is left    |
               retry             +--------------------------------------------------------------+
                                       | exit_code is set: run done, stopped, a limit or an error
                                       v
                                   +-------+
                                   | ended |
                                   +-------+

    With --keep-slice, a run that is done or was stopped ends without `draining`. The rules that
    lead to each arrow are in the docstring of this module.

    Args:
      state: the state after the previous turn.
      observation: what this turn has read from the cloud and the bucket.
      wall_time: seconds since 1970; may go backwards when the clock is set back.
      limits: the limits and timeouts of the run.
    """
    state = advance_time(state, observation, wall_time)
    if state.ended:
        return state, ()
    if not observation.reachable:
        return cloud_unreachable(state, limits), ()
    state = record_observation(state, observation)
    if state.phase != "draining" or observation.done:
        state = _check_end_conditions(state, observation, limits)
        if state.ended:
            return state, ()
    state = adopt_newer_attempt(state, observation)
    old_slices = [each for each in observation.slices if each.attempt != state.attempt]
    deletions = tuple(DeleteSlice(live=each) for each in old_slices if each.status != "deleting")
    if old_slices and state.phase in ("idle", "requested", "ready"):
        return state, deletions
    state, actions = _phase_turn(state, observation, limits)
    if state.phase == "draining":
        # Also when this turn has just started to drain: the slice is stopped or deleted at once.
        return _draining_turn(state, observation, limits)
    return state, (*deletions, *actions)


def _phase_turn(state: LoopState, observation: Observation, limits: Limits) -> Turn:
    live = next((each for each in observation.slices if each.attempt == state.attempt), None)
    match state.phase:
        case "idle":
            return _idle_turn(state, live, limits)
        case "requested":
            return _requested_turn(state, observation, live, limits)
        case "ready":
            return _ready_turn(state, observation, live, limits)
        case "running":
            return _running_turn(state, observation, live, limits)
        case "draining" | "ended":
            return state, ()


def _check_end_conditions(state: LoopState, observation: Observation, limits: Limits) -> LoopState:
    """Ends the run if it is done, was asked to stop, or has reached a limit, in any phase."""
    if observation.done:
        if limits.keep_slice:
            return replace(state, phase="ended", exit_code=EXIT_DONE, reason="done")
        return finish(state, EXIT_DONE, "done")
    if observation.stop_requested and (limits.keep_slice or observation.keep_slice):
        # No StopTrainers is needed: the `stop` command has already stopped them.
        reason = "stopped on request; the slice is kept"
        return replace(state, phase="ended", exit_code=EXIT_SAVED, reason=reason)
    if observation.stop_requested:
        return finish(state, EXIT_SAVED, "stopped on request", save_first=True)
    max_seconds = limits.max_hours * 3600
    if state.billed_seconds >= max_seconds - min(limits.save_grace, 0.1 * max_seconds):
        reason = (
            f"the limit of {limits.max_hours:.2f} slice hours is reached; `{TPUCTL} babysit` "
            "with a higher --max-hours or --max-usd resumes the run"
        )
        return finish(state, EXIT_SAVED, reason, save_first=True)
    no_slice = state.phase in ("idle", "requested") and not state.is_billed
    if no_slice and seconds_without_slice(state) >= limits.wait_hours * 3600:
        return finish(state, EXIT_SAVED, f"no slice was available in {limits.wait_hours:g} hours")
    return state


def _idle_turn(state: LoopState, live: LiveSlice | None, limits: Limits) -> Turn:
    if live is not None:
        phase = "draining" if live.status in ("terminated", "deleting") else "requested"
        return replace(state, phase=phase, phase_since=state.loop_time), ()
    blocked = [state.blocked_until.get(zone, 0.0) for zone in limits.zones]
    if min(blocked) >= FOREVER:
        return finish(state, EXIT_CONFIG, state.reason or "no zone is left"), ()
    free_zones = [
        zone for zone, until in zip(limits.zones, blocked, strict=True) if until <= state.loop_time
    ]
    if not free_zones or state.loop_time < state.not_before:
        return state, ()
    state = begin_attempt(state, state.attempt + 1, free_zones[0])
    return state, (CreateSlice(attempt=state.attempt, zone=state.zone),)


def _requested_turn(
    state: LoopState, observation: Observation, live: LiveSlice | None, limits: Limits
) -> Turn:
    waited = state.loop_time - state.phase_since
    if observation.failure is not None and observation.failure.action == "create":
        state = creation_failed(state, observation.failure, limits)
        if state.phase == "draining":
            return state, ()
    if live is None:
        return (retry(state, limits) if waited >= LIST_DELAY_SECONDS else state), ()
    if live.status in ("terminated", "deleting"):
        return creation_failed_late(state, live, limits), ()
    if live.status == "waiting":
        possible_zones = [
            zone for zone in limits.zones if state.blocked_until.get(zone, 0.0) < FOREVER
        ]
        if waited >= limits.zone_queue_timeout and len(possible_zones) > 1:
            return retry(block_zone(state, limits.zone_cooldown), limits), ()
        return replace(state, degraded_since=None), ()
    if live.status == "ready":
        state = replace(
            state,
            phase="ready",
            phase_since=state.loop_time,
            ready_at=state.loop_time,
            degraded_since=None,
            start_tries=0,
            creation_failures=0,
        )
        return _ready_turn(state, observation, live, limits)
    return slice_degraded(state, live, limits, limits.boot_timeout), ()


def _ready_turn(
    state: LoopState, observation: Observation, live: LiveSlice | None, limits: Limits
) -> Turn:
    if live is None or live.status != "ready":
        return slice_not_ready(state, live, limits), ()
    now = state.loop_time
    if observation.trainers_started:
        state = replace(
            state,
            phase="running",
            phase_since=now,
            heartbeats={},
            heartbeat_times={str(host): now for host in range(limits.hosts)},
            first_exit_at=None,
        )
        return _running_turn(state, observation, live, limits)
    failure = observation.failure
    if failure is not None and failure.action == "start":
        if failure.error_kind == "config":
            return finish(state, failure.exit_code, failure.message), ()
        if failure.error_kind in FATAL_ERRORS:
            return finish(state, EXIT_CONFIG, failure.message), ()
        state = replace(state, start_tries=state.start_tries + 1, reason=failure.message)
        if failure.error_kind == "preflight" or state.start_tries >= limits.max_tries:
            return slice_lost(state, limits, failure.message), ()
        state = replace(state, not_before=now + backoff_seconds(state.start_tries, limits))
    return state, ((StartTrainers(live=live),) if now >= state.not_before else ())


def _running_turn(
    state: LoopState, observation: Observation, live: LiveSlice | None, limits: Limits
) -> Turn:
    now = state.loop_time
    codes = {each.host: each.exit_code for each in observation.hosts if each.exit_code is not None}
    if codes:
        first_exit_at = now if state.first_exit_at is None else state.first_exit_at
        state = replace(state, first_exit_at=first_exit_at)
        fatal = [(host, code) for host, code in sorted(codes.items()) if code in FATAL_EXIT_CODES]
        if fatal:
            host, code = fatal[0]
            return finish(state, code, f"host {host}: {describe_exit_code(code)} (code {code})"), ()
        if now - first_exit_at >= exit_wait_seconds(codes, limits):
            return hosts_exited(state, codes, limits), ()
    if live is None or live.status != "ready":
        return slice_not_ready(state, live, limits), ()
    state = update_heartbeats(replace(state, degraded_since=None), observation)
    for host, since in sorted(state.heartbeat_times.items()):
        never_reported = host not in state.heartbeats
        timeout = limits.boot_timeout if never_reported else limits.heartbeat_timeout
        if int(host) not in codes and now - since >= timeout:
            problem = "has not sent a heartbeat" if never_reported else "has stopped reporting"
            minutes = (now - since) / 60
            return slice_lost(state, limits, f"host {host} {problem} for {minutes:.0f} minutes"), ()
    return state, ()


def _draining_turn(state: LoopState, observation: Observation, limits: Limits) -> Turn:
    """Stops the trainers, deletes all slices, and waits until none exists."""
    now = state.loop_time
    if not observation.slices:
        if state.exit_code is None:
            return replace(state, phase="idle", phase_since=now, stopping_since=None), ()
        return replace(state, phase="ended"), ()
    if now - state.phase_since >= limits.delete_timeout_hours * 3600 + limits.save_grace:
        remaining = ", ".join(f"{each.detail} in {each.zone}" for each in observation.slices)
        reason = f"{state.reason}; not deleted after {limits.delete_timeout_hours:g} h: {remaining}"
        exit_code = EXIT_FAILED if state.exit_code in (None, EXIT_DONE) else state.exit_code
        return replace(state, phase="ended", exit_code=exit_code, reason=reason), ()
    exited_hosts = {each.host for each in observation.hosts if each.exit_code is not None}
    still_saving = (
        state.stopping_since is not None
        and now - state.stopping_since < limits.save_grace
        and state.billed_seconds < limits.max_hours * 3600
        and len(exited_hosts) < limits.hosts
    )
    actions: list[Action] = []
    for live in observation.slices:
        if still_saving and live.status == "ready":
            actions.append(StopTrainers(live=live))
        elif live.status != "deleting":
            actions.append(DeleteSlice(live=live))
    return state, tuple(actions)
