"""The restart loop as a pure function: what is known, what is seen, the time -> what to do.

    down --Create--> asked --> ready --Start--> running --> leaving --all gone--> down | ended

The rules, in the order in which they count:
1. Nothing is created, stopped or deleted in a turn in which not everything could be seen.
2. A slice of another life than the current one is deleted before one is made or used: one run
   never has two. What trains already is looked after meanwhile.
3. Codes 2, 64 and 78 end the run: the same command would end in the same way. Code 1 does too,
   unless this life brought a new checkpoint.
4. --max-hours and --max-usd end it, gently at first.
5. Otherwise what was lost is made anew, as long as lives bring new checkpoints: three in a row
   that do not end the run. Being asked to save and leave (75) is no failure.
6. A zone that is sold out, or takes a slice back at once, is left alone for half an hour.
"""

from dataclasses import replace

from tpu.launcher.backend import LiveSlice
from tpu.launcher.states import (
    FOREVER,
    Action,
    Create,
    Delete,
    Limits,
    Loop,
    Observation,
    Start,
    Stop,
    Turn,
)  # fmt: skip
from tpu.launcher.transitions import (
    LISTED,
    NOWHERE,
    again,
    backoff,
    beats,
    begin,
    block,
    exited,
    leave,
    lost,
    not_given,
    not_ready,
    patience,
    refused,
    unwell,
    without,
)  # fmt: skip
from tpu.protocol import EXIT_CONFIG, EXIT_DONE, EXIT_FAILED, EXIT_SAVED, NOT_REPEATED, meaning

BILLED = ("starting", "ready", "unwell")
_GAP = 5 * 60
"""A longer turn than this is a laptop that slept, or a launcher that was not there: nobody can be
blamed for silence, and no patience runs out meanwhile. The bill does not stand still."""


def decide(state: Loop, seen: Observation, clock: float, limits: Limits) -> Turn:
    """One turn of the loop; `clock` in seconds, and it may be set back."""
    state = _advance(state, seen, clock)
    if state.ended:
        return state, ()
    if not seen.seen:
        return _blind(state, limits), ()
    state = _look(state, seen)
    if state.phase != "leaving" or seen.done:
        state = _ends(state, seen, limits)
        if state.ended:
            return state, ()
    state = _adopt(state, seen)
    old = [each for each in seen.slices if each.incarnation != state.incarnation]
    deletions = tuple(Delete(live=each) for each in old if each.status != "deleting")
    if old and state.phase in ("down", "asked", "ready"):
        return state, deletions
    turn = {"down": _down, "asked": _asked, "ready": _ready, "running": _running}
    live = next((each for each in seen.slices if each.incarnation == state.incarnation), None)
    if state.phase in turn:
        state, actions = turn[state.phase](state, seen, live, limits)
        if state.phase != "leaving":
            return state, (*deletions, *actions)
    return _leaving(state, seen, limits)


def _advance(state: Loop, seen: Observation, clock: float) -> Loop:
    passed = max(0.0, clock - state.clock)
    slept, step = passed > _GAP, min(passed, _GAP)
    state = replace(
        state,
        clock=clock,
        now=state.now + step,
        billed=state.billed + (passed if state.billing else 0.0),
    )
    if slept or not seen.seen or state.blind_since is not None:
        # Time in which we could not look does not count as their silence.
        shift = {host: since + step for host, since in state.beats_since.items()}
        unwell = None if state.unwell_at is None else state.unwell_at + step
        state = replace(state, beats_since=shift, unwell_at=unwell)
    if slept and state.blind_since is not None:
        state = replace(state, blind_since=state.blind_since + step)  # nobody looked
    return state


def _blind(state: Loop, limits: Limits) -> Loop:
    """Nothing is done; only when it lasts, far beyond all limits, the loop gives up."""
    since = state.now if state.blind_since is None else state.blind_since
    state = replace(state, blind_since=since)
    over = limits.blind_hours * 3600
    spent = state.billing and state.billed >= limits.hours * 3600 + over
    waited = not state.billing and without(state) >= limits.wait_hours * 3600 + over
    if (spent or waited) and state.now - since >= over:
        reason = (
            "the cloud cannot be asked any more; if a slice is left it costs money: tpu/pod down"
        )
        return replace(state, phase="ended", outcome=EXIT_FAILED, reason=reason)
    return state


def _look(state: Loop, seen: Observation) -> Loop:
    steps = [each.step for each in seen.hosts if each.step is not None]
    return replace(
        state,
        blind_since=None,
        billing=any(each.status in BILLED for each in seen.slices),
        step=max([state.step, *steps]),
    )


def _ends(state: Loop, seen: Observation, limits: Limits) -> Loop:
    """What ends the run whatever else is going on."""
    if seen.done:
        if limits.keep:
            return replace(state, phase="ended", outcome=EXIT_DONE, reason="done")
        return leave(state, EXIT_DONE, "done")
    if seen.stop and (limits.keep or seen.keep):
        # Whoever asked has told the trainers, too.
        reason = "stopped on request; the slice is kept"
        return replace(state, phase="ended", outcome=EXIT_SAVED, reason=reason)
    if seen.stop:
        return leave(state, EXIT_SAVED, "stopped on request", gently=True)
    seconds = limits.hours * 3600
    if state.billed >= seconds - min(limits.grace, 0.1 * seconds):
        reason = (
            f"the limit of {limits.hours:.2f} hours of slices is reached; `tpu/pod babysit` with a "
            "higher --max-hours or --max-usd goes on"
        )
        return leave(state, EXIT_SAVED, reason, gently=True)
    nothing = state.phase in ("down", "asked") and not state.billing
    if nothing and without(state) >= limits.wait_hours * 3600:
        return leave(state, EXIT_SAVED, f"no slice to be had in {limits.wait_hours:g} hours")
    return state


def _adopt(state: Loop, seen: Observation) -> Loop:
    """Goes on with a newer life than ours, as after a loop that died."""
    newest = max((each.incarnation for each in seen.slices), default=-1)
    if newest <= state.incarnation:
        return state
    zone = next(each.zone for each in seen.slices if each.incarnation == newest)
    phase = "leaving" if state.phase == "leaving" else "asked"
    return replace(begin(state, newest, zone), phase=phase)


def _down(state: Loop, seen: Observation, live: LiveSlice | None, limits: Limits) -> Turn:
    if live is not None:
        phase = "leaving" if live.status in ("dead", "deleting") else "asked"
        return replace(state, phase=phase, phase_since=state.now), ()
    blocked = [state.blocked.get(zone, 0.0) for zone in limits.zones]
    if min(blocked) >= FOREVER:
        return leave(state, EXIT_CONFIG, state.reason or "no zone is left"), ()
    free = [zone for zone, until in zip(limits.zones, blocked, strict=True) if until <= state.now]
    if not free or state.now < state.not_before:
        return state, ()
    state = begin(state, state.incarnation + 1, free[0])
    return state, (Create(incarnation=state.incarnation, zone=state.zone),)


def _asked(state: Loop, seen: Observation, live: LiveSlice | None, limits: Limits) -> Turn:
    waited = state.now - state.phase_since
    if seen.failure is not None and seen.failure.action == "create":
        state = refused(state, seen.failure, limits)
        if state.phase == "leaving":
            return state, ()
    if live is None:
        return (again(state, limits) if waited >= LISTED else state), ()
    if live.status in ("dead", "deleting"):
        return not_given(state, live, limits), ()
    if live.status == "waiting":
        others = [zone for zone in limits.zones if state.blocked.get(zone, 0.0) < FOREVER]
        if waited >= limits.zone_wait and len(others) > 1:
            return again(block(state, limits.cool_down), limits), ()
        return replace(state, unwell_at=None), ()
    if live.status == "ready":
        state = replace(
            state, phase="ready", phase_since=state.now, ready_at=state.now, unwell_at=None
        )
        return _ready(replace(state, tries=0, refusals=0), seen, live, limits)
    return unwell(state, live, limits, limits.boot), ()


def _ready(state: Loop, seen: Observation, live: LiveSlice | None, limits: Limits) -> Turn:
    if live is None or live.status != "ready":
        return not_ready(state, live, limits), ()
    if seen.started:
        hosts = {str(host): state.now for host in range(limits.hosts)}
        state = replace(state, phase="running", phase_since=state.now, beats={}, beats_since=hosts)
        return _running(replace(state, exit_at=None), seen, live, limits)
    failure = seen.failure
    if failure is not None and failure.action == "start":
        if failure.kind == "config":
            return leave(state, failure.code, failure.text), ()
        if failure.kind in NOWHERE:
            return leave(state, EXIT_CONFIG, failure.text), ()
        state = replace(state, tries=state.tries + 1, reason=failure.text)
        if failure.kind == "preflight" or state.tries >= limits.ssh_tries:
            return lost(state, limits, failure.text), ()
        state = replace(state, not_before=state.now + backoff(state.tries, limits))
    return state, ((Start(live=live),) if state.now >= state.not_before else ())


def _running(state: Loop, seen: Observation, live: LiveSlice | None, limits: Limits) -> Turn:
    codes = {each.host: each.exit_code for each in seen.hosts if each.exit_code is not None}
    if codes:
        state = replace(state, exit_at=state.now if state.exit_at is None else state.exit_at)
        fatal = [(host, code) for host, code in sorted(codes.items()) if code in NOT_REPEATED]
        if fatal:
            host, code = fatal[0]
            return leave(state, code, f"host {host}: {meaning(code)} (code {code})"), ()
        waited = state.now - (state.exit_at or 0.0)
        if waited >= patience(codes, limits):
            return exited(state, codes, limits), ()
    if live is None or live.status != "ready":
        return not_ready(state, live, limits), ()
    state = beats(replace(state, unwell_at=None), seen)
    for host, since in sorted(state.beats_since.items()):
        never = host not in state.beats
        if int(host) not in codes and state.now - since >= (limits.boot if never else limits.quiet):
            word = "has not reported at all" if never else "has fallen silent"
            minutes = (state.now - since) / 60
            return lost(state, limits, f"host {host} {word} for {minutes:.0f} minutes"), ()
    return state, ()


def _leaving(state: Loop, seen: Observation, limits: Limits) -> Turn:
    """Stops, deletes, and waits until nothing is there."""
    if not seen.slices:
        if state.outcome is None:
            return replace(state, phase="down", phase_since=state.now, stopping_at=None), ()
        return replace(state, phase="ended"), ()
    if state.now - state.phase_since >= limits.delete_hours * 3600 + limits.grace:
        left = ", ".join(f"{each.detail} in {each.zone}" for each in seen.slices)
        reason = f"{state.reason}; still there after {limits.delete_hours:g} h of deleting: {left}"
        outcome = EXIT_FAILED if state.outcome in (None, EXIT_DONE) else state.outcome
        return replace(state, phase="ended", outcome=outcome, reason=reason), ()
    actions: list[Action] = []
    ended = {each.host for each in seen.hosts if each.exit_code is not None}
    for live in seen.slices:
        since = state.stopping_at
        patient = since is not None and state.now - since < limits.grace
        patient = patient and state.billed < limits.hours * 3600 and len(ended) < limits.hosts
        if patient and live.status == "ready":
            actions.append(Stop(live=live))
        elif live.status != "deleting":
            actions.append(Delete(live=live))
    return state, tuple(actions)
