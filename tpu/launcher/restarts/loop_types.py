"""Defines the state, the observations, the limits and the actions of the restart loop."""

from dataclasses import dataclass, field
from typing import Literal

from tpu.launcher.cloud.backend import LiveSlice
from tpu.launcher.cloud.error_catalog import ErrorKind

LoopPhase = Literal["idle", "requested", "ready", "running", "draining", "ended"]
"""idle: no slice is wanted at the moment; requested: a slice was requested; ready: its hosts can be
used; running: the trainers were started; draining: all slices are deleted, then the next attempt
begins or the loop ends; ended: nothing is left to do."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Holds the limits and timeouts of the restart loop, in seconds unless the name says otherwise.

    Attributes:
      zones: zones to create slices in, in the order in which they are tried.
      max_hours: slice hours of all attempts together: the lower of --max-hours and --max-usd.
      wait_hours: longest time without a slice before the run ends.
      zone_queue_timeout: time in one zone's queue before the next zone is tried.
      zone_cooldown: time for which a zone is not used after a stockout or an early loss.
      early_loss: a slice that is lost within this time of being ready was lost early.
      boot_timeout: from the creation of machines until they are ready, and from the start of the
        trainers until the first heartbeat.
      degraded_timeout: time for which a slice may be degraded before it counts as lost.
      heartbeat_timeout: time without a new heartbeat of a host before the slice counts as lost.
      exit_grace: time for the other hosts to exit after the first one has.
      save_grace: time for saving before a slice is deleted because of a limit.
      unreachable_timeout_hours: how long the cloud must be unreachable, and how far the limits must
        be exceeded, before the loop gives up.
      max_attempts_without_progress: attempts in a row that end without a new checkpoint.
      max_tries: tries to start the trainers on one slice; also creations in a row that fail for an
        unknown reason.
      delete_timeout_hours: time for a slice to disappear after it was deleted, before the loop
        reports it and ends.
      keep_slice: do not delete the slice of a run that is done or was asked to stop.
    """

    hosts: int
    zones: tuple[str, ...]
    max_hours: float
    wait_hours: float = 24.0
    zone_queue_timeout: float = 20 * 60
    zone_cooldown: float = 30 * 60
    early_loss: float = 10 * 60
    boot_timeout: float = 30 * 60
    degraded_timeout: float = 5 * 60
    heartbeat_timeout: float = 10 * 60
    exit_grace: float = 3 * 60
    save_grace: float = 10 * 60
    unreachable_timeout_hours: float = 1.0
    initial_backoff: float = 15.0
    max_backoff: float = 10 * 60
    max_attempts_without_progress: int = 3
    max_tries: int = 5
    delete_timeout_hours: float = 1.0
    keep_slice: bool = False


@dataclass(frozen=True, kw_only=True)
class HostObservation:
    """Summarizes the latest reports of one host; `heartbeat` differs from one to the next."""

    host: int
    heartbeat: str = ""
    step: int | None = None
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True)
class ActionFailure:
    """Describes an action of the restart loop that failed."""

    action: Literal["create", "start"]
    error_kind: ErrorKind | Literal["preflight", "config"]
    message: str
    exit_code: int = 1


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Holds the input of one iteration of the restart loop: what the cloud and bucket contain now.

    Attributes:
      reachable: False if something could not be read; all other fields are meaningless then.
      slices: all slices of the run that exist.
      hosts: reports of the hosts of the newest attempt.
      trainers_started: True if this launcher started the trainers of the newest attempt, or if all
        of its hosts have sent a report.
      done: True if the run is complete.
      stop_requested: True if a user asked the run to stop.
      keep_slice: True if the request to stop asks to keep the slice; False without such a request.
      failure: the action that failed since the previous observation; None if none did.
    """

    reachable: bool = True
    slices: tuple[LiveSlice, ...] = ()
    hosts: tuple[HostObservation, ...] = ()
    trainers_started: bool = False
    done: bool = False
    stop_requested: bool = False
    keep_slice: bool = False
    failure: ActionFailure | None = None


@dataclass(frozen=True, kw_only=True)
class CreateSlice:
    """Requests a slice."""

    attempt: int
    zone: str


@dataclass(frozen=True, kw_only=True)
class StartTrainers:
    """Installs the code, checks the hosts and starts the trainers; can safely be repeated."""

    live: LiveSlice


@dataclass(frozen=True, kw_only=True)
class StopTrainers:
    """Sends SIGTERM to the trainers, which then save and exit."""

    live: LiveSlice


@dataclass(frozen=True, kw_only=True)
class DeleteSlice:
    """Deletes a slice."""

    live: LiveSlice


Action = CreateSlice | StartTrainers | StopTrainers | DeleteSlice
FOREVER = 1e15
"""The value in `blocked_until` of a zone that can never be used (no quota, slice not offered)."""


@dataclass(frozen=True, kw_only=True)
class LoopState:
    """Holds the state of the restart loop; saved in the bucket so that any machine can resume it.

    `loop_time` is the loop's own clock in seconds. It adds up the forward steps of the wall clock,
    of a long step only the first minutes (see `advance_time`), and stands still when the wall
    clock is set back. So no timer is ever negative.

    Attributes:
      attempt: number of the latest attempt; -1 before the first.
      phase_since, heartbeat_times: in `loop_time`.
      heartbeats: the latest heartbeat of each host.
      billed_seconds: time in which a slice existed.
      step, step_at_start: step of the newest checkpoint, now and when the attempt began.
      attempts_without_progress: attempts in a row that ended without a new checkpoint.
      creation_failures: creations in a row that failed for an unknown reason.
      start_tries: tries to start the trainers in this attempt.
      blocked_until: zone -> `loop_time` until which it is not used.
      exit_code, reason: how the loop ends once all slices are deleted; exit_code None: it retries.
    """

    wall_time: float
    loop_time: float = 0.0
    phase: LoopPhase = "idle"
    phase_since: float = 0.0
    attempt: int = -1
    zone: str = ""
    not_before: float = 0.0
    without_slice_since: float = 0.0
    ready_at: float | None = None
    first_exit_at: float | None = None
    degraded_since: float | None = None
    heartbeats: dict[str, str] = field(default_factory=dict)
    heartbeat_times: dict[str, float] = field(default_factory=dict)
    unreachable_since: float | None = None
    billed_seconds: float = 0.0
    is_billed: bool = False
    step: int = -1
    step_at_start: int = -1
    attempts_without_progress: int = 0
    start_tries: int = 0
    creation_failures: int = 0
    stopping_since: float | None = None
    blocked_until: dict[str, float] = field(default_factory=dict)
    exit_code: int | None = None
    reason: str = ""

    @property
    def ended(self) -> bool:
        """Returns whether nothing is left to do."""
        return self.phase == "ended"


Turn = tuple[LoopState, tuple[Action, ...]]
"""The result of one iteration of the restart loop: its new state and the actions to perform."""
