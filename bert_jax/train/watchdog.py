"""A step, save or evaluation that hangs: says where, on each host for itself, and ends the process.

When one host of several stops, the others wait for it without end, and none of them fails. Here
each process counts how long it has been at what it does. Beyond a limit it prints its number, its
host, and what it is at, dumps the stacks of all its threads, and exits with code 70 (EX_SOFTWARE),
so that whoever supervises the run starts it again from the newest checkpoint: a hang saves nothing.
The host whose line or stack differs from the others' is the one to look at.

Compilation is not watched. A hang that holds Python's interpreter lock is not seen by the process
itself; the other hosts see it. Seconds are counted while the process runs: one that was stopped
(Ctrl-Z, a paused machine) is not blamed for that, and no two hosts compare their clocks.
"""

import contextlib
import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

import jax

from bert_jax.errors import UserError
from bert_jax.train.hooks import StepEvent
from bert_jax.train.preemption import EXIT_HUNG

SECONDS = "BERT_JAX_WATCHDOG_SECONDS"
DEFAULT_SECONDS = 600.0
LONGER = {"evaluate": 6.0, "conclude": 6.0}
"""Phases of many steps, which may take so many times as long; until then a line says so."""
_LONGEST_TICK = 5.0
# Between what this process says and its end: the others, if they hang with it, speak as well.
# Process 0 ends last, because JAX aborts whoever finds it gone.
_GRACE_TICKS, _GRACE_TICKS_OF_PROCESS_0 = 2, 3


@dataclass
class _Place:
    phase: str
    step: int
    waited: float = 0.0
    told: bool = False


class Watchdog:
    """A hook that watches while it is entered, and what else is done `with watchdog.doing(...)`.

    Args:
      seconds: what a step or a save may take; None: BERT_JAX_WATCHDOG_SECONDS, or 600, but
        nothing is watched where one process trains on a CPU. 0: nothing is watched.

    Raises:
      UserError: the variable is no number.
    """

    every = 1

    def __init__(self, seconds: float | None = None):
        self.seconds = _seconds() if seconds is None else seconds
        self._tick = min(_LONGEST_TICK, max(0.05, self.seconds / 10))
        self._place: _Place | None = None
        self._last = "nothing yet"
        self._end = threading.Event()
        self._gave_up = False

    def __enter__(self) -> "Watchdog":
        if self.seconds > 0:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def enter(self, phase: str, step: int) -> None:
        """From here on the process is at `phase` of `step`; the seconds begin anew."""
        self._place = _Place(phase, step)

    def leave(self) -> None:
        """From here on nothing is watched, until `enter`."""
        self._place = None

    @contextlib.contextmanager
    def doing(self, phase: str, step: int) -> Iterator[None]:
        """Watches what is done inside; after it, what was watched before begins anew."""
        before = self._place
        self.enter(phase, step)
        yield
        self._last = f"{phase} {step}"
        self._place = _Place(before.phase, before.step) if before else None

    def __call__(self, event: StepEvent) -> None:
        """A step has ended, and the next one begins."""
        self._last = f"step {event.step}"
        if event.step < event.total_steps:
            self.enter("step", event.step + 1)
        else:
            self.leave()

    def close(self) -> None:
        """Watches no longer. If it has given up, the process fails of that and of nothing else."""
        if self._gave_up:
            os._exit(EXIT_HUNG)
        self._end.set()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._end.wait(self._tick):
            now = time.monotonic()
            # A tick that took much longer was not spent at the step: the process stood still.
            passed, before = min(now - before, 3 * self._tick), now
            place = self._place
            if place is None:
                continue
            place.waited += passed
            if place.waited > self.seconds * LONGER.get(place.phase, 1.0):
                self._give_up(place)
            elif place.waited > self.seconds and not place.told:
                place.told = True  # if this is a hang, another host may give up before this one
                self._say(place, "has been at")

    def _say(self, place: _Place, what: str) -> None:
        here = f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}"
        print(
            f"watchdog: {here} {what}: {place.phase} {place.step}, for {place.waited:.0f} s; the "
            f"last thing that ended: {self._last} ({SECONDS}={self.seconds:g})",
            file=sys.stderr,
            flush=True,
        )

    def _give_up(self, place: _Place) -> None:
        self._say(place, "hangs in")
        print(f"exit code {EXIT_HUNG}; stacks of all threads:", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)
        self._gave_up = True
        first = jax.process_index() == 0
        time.sleep(self._tick * (_GRACE_TICKS_OF_PROCESS_0 if first else _GRACE_TICKS))
        os._exit(EXIT_HUNG)


def _seconds() -> float:
    text = os.environ.get(SECONDS, "")
    if not text:
        alone = jax.process_count() == 1 and jax.default_backend() == "cpu"
        return 0.0 if alone else DEFAULT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UserError(
            f"{SECONDS}={text!r}: expected a number of seconds, as in {SECONDS}=600; 0 is no watch"
        )
    return seconds
