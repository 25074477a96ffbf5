"""What the restart loop knows, sees and does: the words in which `decide` speaks. Plain data."""

from dataclasses import dataclass, field
from typing import Literal

from tpu.launcher.backend import LiveSlice
from tpu.launcher.messages import Kind

LoopPhase = Literal["down", "asked", "ready", "running", "leaving", "ended"]
"""down: no slice is wanted at the moment · asked: one was asked for · ready: its hosts can be
used · running: the trainer was started · leaving: all slices go, then the next one is made or the
loop ends · ended."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the loop keeps to. Seconds unless the name says otherwise.

    Attributes:
      zones: in the order in which they are tried.
      hours: of slices, all lives together, whichever of --max-hours and --max-usd is less.
      wait_hours: without a slice, at one stretch, before giving up.
      zone_wait: in a zone's queue before the next zone is tried.
      cool_down: a zone is left alone after a stock-out or an early loss.
      early: a slice lost that soon after it was ready was lost early.
      boot: from machines being made to being ready; and from starting to the first heartbeat.
      quiet: without a new heartbeat from some host before the slice counts as lost.
      settle: for the other hosts to end after the first one has.
      grace: for saving, before a slice is taken away at a limit.
      blind_hours: of looking in vain, and beyond the limit, before the loop gives up.
      no_progress: lives in a row that end without a new checkpoint.
      ssh_tries: to start the trainer on one slice; also creations that fail for no known reason.
      delete_hours: for a slice to be gone after it was deleted, before we say so and leave.
      keep: a slice whose run is done, or was asked to stop, is left alone.
    """

    hosts: int
    zones: tuple[str, ...]
    hours: float
    wait_hours: float = 24.0
    zone_wait: float = 20 * 60
    cool_down: float = 30 * 60
    early: float = 10 * 60
    boot: float = 30 * 60
    unwell: float = 5 * 60
    quiet: float = 10 * 60
    settle: float = 3 * 60
    grace: float = 10 * 60
    blind_hours: float = 1.0
    backoff: float = 15.0
    most_backoff: float = 10 * 60
    no_progress: int = 3
    ssh_tries: int = 5
    delete_hours: float = 1.0
    keep: bool = False


@dataclass(frozen=True, kw_only=True)
class HostSeen:
    """The last word of a host in the current life; `beat` changes with every heartbeat."""

    host: int
    beat: str = ""
    step: int | None = None
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What became of an action of the turn before, if it failed."""

    action: Literal["create", "start"]
    kind: Kind | Literal["preflight", "config"]
    text: str
    code: int = 1


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One look at everything.

    Attributes:
      seen: False when the cloud or the bucket could not be asked; nothing else counts then.
      slices: all of this run's that exist.
      hosts: of the current life.
      started: the trainers of the current life were started.
      done: the run is complete.
      stop: someone asked the run to stop.
      keep: and wants its slice to be left alone.
      failure: of an action of the turn before.
    """

    seen: bool = True
    slices: tuple[LiveSlice, ...] = ()
    hosts: tuple[HostSeen, ...] = ()
    started: bool = False
    done: bool = False
    stop: bool = False
    keep: bool = False
    failure: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class Create:
    """Ask for a slice."""

    incarnation: int
    zone: str


@dataclass(frozen=True, kw_only=True)
class Start:
    """Code, order, preflight and trainer, on a slice that is ready; safe to repeat."""

    live: LiveSlice


@dataclass(frozen=True, kw_only=True)
class Stop:
    """SIGTERM to the trainers, which then save."""

    live: LiveSlice


@dataclass(frozen=True, kw_only=True)
class Delete:
    """Take a slice away."""

    live: LiveSlice


Action = Create | Start | Stop | Delete
FOREVER = 1e15
"""Until when a zone is blocked that does not have what we need."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """All that the loop remembers; kept in the bucket, so that any machine can go on with it.

    `now` is the loop's own time in seconds: the sum of the clock's steps forward, of a long one its
    first minutes only (`decide` says why). A clock that is set back stands still here; it never
    makes a timer negative.

    Attributes:
      incarnation: the latest life; -1 before the first.
      phase_since, beats_since: in the loop's time.
      beats: the hosts' last heartbeats.
      billed: seconds in which a slice existed.
      step, step_before: newest checkpoint seen, and when the current life began.
      failures: lives in a row that ended without a new checkpoint.
      refusals: creations in a row that failed for a reason that is not known.
      tries: to start the trainer in the current life.
      blocked: zone -> until when it is left alone.
      outcome, reason: how the loop ends once all slices are gone; None: it goes on.
    """

    clock: float
    now: float = 0.0
    phase: LoopPhase = "down"
    phase_since: float = 0.0
    incarnation: int = -1
    zone: str = ""
    not_before: float = 0.0
    without_slice_since: float = 0.0
    ready_at: float | None = None
    exit_at: float | None = None
    unwell_at: float | None = None
    beats: dict[str, str] = field(default_factory=dict)
    beats_since: dict[str, float] = field(default_factory=dict)
    blind_since: float | None = None
    billed: float = 0.0
    billing: bool = False
    step: int = -1
    step_before: int = -1
    failures: int = 0
    tries: int = 0
    refusals: int = 0
    stopping_at: float | None = None
    blocked: dict[str, float] = field(default_factory=dict)
    outcome: int | None = None
    reason: str = ""

    @property
    def ended(self) -> bool:
        """Nothing is left to do."""
        return self.phase == "ended"


Turn = tuple[Loop, tuple[Action, ...]]
