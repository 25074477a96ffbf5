"""Decides the restart loop's next action from its history, observation, limits and the time; pure.

The rules, in order of precedence:
1. `stop` and `down` end the run, and so do exit codes of 0 on all hosts.
2. Exit codes 2, 64 and 78 end the run, because the same command would fail in the same way. So does
   code 1, unless this attempt has written a new checkpoint.
3. Near the limit on hours, the trainers are asked to save, and the run ends.
4. Everything else is retried on a new slice, after the old one is gone. Three attempts in a row
   without a new checkpoint end the run; one that was asked to save does not count.
5. A request for a slice is repeated until it succeeds or the time in the queue is over, except
   after an error that would occur again, such as missing quota.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tpu.job import EXIT_CODES, EXIT_CONFIG, EXIT_DONE, EXIT_FAILED, EXIT_SAVED, EXIT_TERMINATED
from tpu.queued_resource import SliceState

SAVE_SECONDS = 600
"""The longest time in which trainers save after a request to stop."""

STOPPED = "stopped on request"
"""The reason of a run that was ended by `stop` or `down`, which delete the slice themselves."""

Action = Literal["create", "start", "delete", "wait", "save", "end"]

_FATAL_CODES = (2, 64, EXIT_CONFIG)
_SAVED_CODES = (EXIT_SAVED, EXIT_TERMINATED)
_EXIT_WAIT_SECONDS = (
    300  # the other hosts notice after 100 s that one is gone, and upload their logs
)
_START_SECONDS = 1800  # from the creation of machines to the start, and from that to the first log
_RETRY_SECONDS = 300  # after a queued resource has failed
_MAX_ATTEMPTS = 3


@dataclass(frozen=True, kw_only=True)
class History:
    """Holds what the loop remembers between two turns; saved in the bucket.

    Attributes:
      attempt: number of the newest attempt; 0 before the first.
      phase: "queued" from the request for a slice, "starting" from the creation of its machines,
        "training" from the start of the trainers.
      phase_time: when the phase began.
      retry_time: when a slice may be requested again.
      time: of the last turn, in seconds since 1970.
      billed_seconds: for which slices existed outside the queue.
      progress: newest checkpoint (or number of finished jobs) when the last attempt ended.
      unproductive: attempts in a row that made no progress.
      first_exit: when the first host of this attempt was seen to have exited.
      exit_code: of the run; None while it goes on.
      reason: why the run has ended, or why its last attempt was retried.
    """

    attempt: int = 0
    phase: Literal["idle", "queued", "starting", "training"] = "idle"
    phase_time: float = 0.0
    retry_time: float = 0.0
    time: float = 0.0
    billed_seconds: float = 0.0
    progress: int = 0
    unproductive: int = 0
    first_exit: float | None = None
    exit_code: int | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Holds what one turn has read: the slice, the attempt's folder, and the checkpoints.

    Attributes:
      hopeless: why the request for a slice has failed, if it would fail again.
      exit_codes: host -> exit code of its trainer.
      silent_hosts: hosts that have written nothing to the attempt's folder.
    """

    slice: SliceState
    detail: str = ""
    hopeless: str = ""
    exit_codes: Mapping[int, int] = field(default_factory=dict[int, int])
    silent_hosts: tuple[int, ...] = ()
    stop_requested: bool = False
    progress: int = 0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Holds the number of hosts and the limits of a run."""

    hosts: int
    max_hours: float
    wait_hours: float


def decide(
    history: History, seen: Observation, limits: Limits, now: float
) -> tuple[History, Action]:
    """Returns the new history and the action of one turn.

    The history is that before the action; the loop records the start of the trainers itself.
    """
    history, codes = _advance(history, seen, now), seen.exit_codes
    is_idle = history.phase == "idle"  # then the exit codes are from an attempt that has ended
    fatal = [(host, code) for host, code in sorted(codes.items()) if code in _FATAL_CODES]
    # Time to save is kept before the limit on hours, so that the last steps are not lost.
    save_seconds = min(SAVE_SECONDS, 360 * limits.max_hours)  # a tenth of short runs
    if seen.stop_requested:
        return _end(history, EXIT_SAVED, STOPPED)
    if len(codes) == limits.hosts and not any(codes.values()):
        return _end(history, EXIT_DONE, "done")
    if fatal and not is_idle:
        return _end(history, fatal[0][1], f"host {fatal[0][0]}: {describe_exit(fatal[0][1])}")
    if history.billed_seconds >= 3600 * limits.max_hours - save_seconds:
        reason = f"the limit of {limits.max_hours:.2f} slice hours is reached"
        return _end(history, EXIT_SAVED, reason, "save" if history.phase == "training" else "end")
    if is_idle:
        if seen.slice == "absent":
            attempt = history.attempt + 1
            history = replace(history, attempt=attempt, phase="queued", phase_time=now)
            return replace(history, first_exit=None), "create"
        return history, "wait" if seen.slice == "deleting" else "delete"
    if seen.hopeless and history.phase != "training":
        return _end(history, EXIT_CONFIG, seen.hopeless)
    if history.phase == "queued":
        return _queued_turn(history, seen, limits, now)
    elapsed = now - history.phase_time
    if seen.slice in ("absent", "lost", "deleting"):
        return _retry(history, seen, now, f"the slice is gone ({seen.detail})")
    waited = now - (history.first_exit or now)
    if codes and (len(codes) == limits.hosts or waited >= _EXIT_WAIT_SECONDS):
        exits = ", ".join(f"host {host}: {describe_exit(code)}" for host, code in codes.items())
        return _retry(history, seen, now, exits)
    if history.phase == "starting":
        if elapsed >= _START_SECONDS:
            return _retry(history, seen, now, f"not started after 30 minutes ({seen.detail})")
        return history, "start" if seen.slice == "ready" else "wait"
    if seen.silent_hosts and elapsed >= _START_SECONDS:
        return _retry(history, seen, now, f"host {seen.silent_hosts[0]} has written no log")
    return history, "wait"


def _queued_turn(
    history: History, seen: Observation, limits: Limits, now: float
) -> tuple[History, Action]:
    if now - history.phase_time >= 3600 * limits.wait_hours:
        reason = f"no slice was available in {limits.wait_hours:g} hours"
        return _end(history, EXIT_SAVED, reason)
    if seen.slice == "lost":
        reason = f"the request has failed ({seen.detail})"
        return replace(history, reason=reason, retry_time=now + _RETRY_SECONDS), "delete"
    if seen.slice == "absent" and now >= history.retry_time:
        return history, "create"
    return history, "wait"


def describe_exit(code: int) -> str:
    """Returns an exit code with its meaning."""
    return f"{EXIT_CODES.get(code, 'an unexpected exit code')} (code {code})"


def _advance(history: History, seen: Observation, now: float) -> History:
    """Counts the billed time since the last turn, and notes the first exit and a left queue."""
    # Not negative: the loop may go on at another machine, whose clock may be behind.
    elapsed = max(0.0, now - history.time) if history.time else 0.0
    # Slices cost money from their creation to the end of their deletion; the queue is free.
    is_billed = seen.slice in ("starting", "ready", "deleting")
    billed = history.billed_seconds + (elapsed if is_billed else 0.0)
    history = replace(history, time=now, billed_seconds=billed)
    if seen.exit_codes and history.first_exit is None:
        history = replace(history, first_exit=now)
    if history.phase == "queued" and seen.slice in ("starting", "ready"):
        history = replace(history, phase="starting", phase_time=now)
    return history


def _retry(history: History, seen: Observation, now: float, reason: str) -> tuple[History, Action]:
    codes, has_progress = seen.exit_codes, seen.progress > history.progress
    failed = [host for host, code in sorted(codes.items()) if code == EXIT_FAILED]
    if failed and not has_progress:
        return _end(history, EXIT_FAILED, f"host {failed[0]}: {describe_exit(EXIT_FAILED)}")
    # A preemption that was announced is no failure of the run, even if it came before the next
    # checkpoint.
    was_saved = any(code in _SAVED_CODES for code in codes.values())
    unproductive = 0 if has_progress else history.unproductive + (not was_saved)
    progress = max(history.progress, seen.progress)
    history = replace(history, progress=progress, unproductive=unproductive, reason=reason)
    if unproductive >= _MAX_ATTEMPTS:
        text = (
            f"{_MAX_ATTEMPTS} attempts in a row have written no new checkpoint; the last: {reason}"
        )
        return _end(history, EXIT_FAILED, text)
    action: Action = "wait" if seen.slice in ("absent", "deleting") else "delete"
    return replace(history, phase="idle", phase_time=now), action


def _end(
    history: History, code: int, reason: str, action: Action = "end"
) -> tuple[History, Action]:
    return replace(history, phase="idle", exit_code=code, reason=reason), action
