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
from bert_jax.runs.hooks import StepEvent
from bert_jax.train.preemption import EXIT_HUNG

TIMEOUT_VARIABLE = "BERT_JAX_WATCHDOG_SECONDS"
DEFAULT_TIMEOUT_SECONDS = 600.0
TIMEOUT_FACTORS = {"evaluate": 6.0, "conclude": 6.0}
"""Phases of many steps, which may take so many times as long; until then a line says so."""
_MAX_TICK = 5.0
# Between what this process says and its end: the others, if they hang with it, speak as well.
# Process 0 ends last, because JAX aborts whoever finds it gone.
_GRACE_TICKS, _GRACE_TICKS_OF_PROCESS_0 = 2, 3


@dataclass
class _Activity:
    name: str
    step: int
    seconds: float = 0.0
    reported: bool = False


class Watchdog:
    """A hook that watches while it is entered, and what else is done `with watchdog.doing(...)`.

    Args:
      seconds: what a step or a save may take; None: BERT_JAX_WATCHDOG_SECONDS, or 600, but
        nothing is watched where one process trains on a CPU. 0: nothing is watched.

    Raises:
      UserError: the variable is no number.
    """

    every = 1

    def __init__(self, timeout_seconds: float | None = None):
        self.timeout_seconds = (
            _timeout_from_environment() if timeout_seconds is None else timeout_seconds
        )
        self._tick = min(_MAX_TICK, max(0.05, self.timeout_seconds / 10))
        self._activity: _Activity | None = None
        self._last_completed = "nothing yet"
        self._stop_event = threading.Event()
        self._timed_out = False

    def __enter__(self) -> "Watchdog":
        if self.timeout_seconds > 0:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, name: str, step: int) -> None:
        """From here on the process is at `phase` of `step`; the seconds begin anew."""
        self._activity = _Activity(name, step)

    def pause(self) -> None:
        """From here on nothing is watched, until `enter`."""
        self._activity = None

    @contextlib.contextmanager
    def watching(self, name: str, step: int) -> Iterator[None]:
        """Watches what is done inside; after it, what was watched before begins anew."""
        previous = self._activity
        self.start(name, step)
        yield
        self._last_completed = f"{name} {step}"
        self._activity = _Activity(previous.name, previous.step) if previous else None

    def __call__(self, event: StepEvent) -> None:
        """A step has ended, and the next one begins."""
        self._last_completed = f"step {event.step}"
        if event.step < event.total_steps:
            self.start("step", event.step + 1)
        else:
            self.pause()

    def close(self) -> None:
        """Watches no longer. If it has given up, the process fails of that and of nothing else."""
        if self._timed_out:
            os._exit(EXIT_HUNG)
        self._stop_event.set()

    def _watch(self) -> None:
        last_tick = time.monotonic()
        while not self._stop_event.wait(self._tick):
            now = time.monotonic()
            # A tick that took much longer was not spent at the step: the process stood still.
            elapsed, last_tick = min(now - last_tick, 3 * self._tick), now
            activity = self._activity
            if activity is None:
                continue
            activity.seconds += elapsed
            if activity.seconds > self.timeout_seconds * TIMEOUT_FACTORS.get(activity.name, 1.0):
                self._exit_hung(activity)
            elif activity.seconds > self.timeout_seconds and not activity.reported:
                # If this is a hang, another host may give up before this one.
                activity.reported = True
                self._log(activity, "has been at")

    def _log(self, activity: _Activity, status: str) -> None:
        process_text = (
            f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}"
        )
        print(
            f"watchdog: {process_text} {status}: {activity.name} {activity.step}, "
            f"for {activity.seconds:.0f} s; the last thing that ended: {self._last_completed} "
            f"({TIMEOUT_VARIABLE}={self.timeout_seconds:g})",
            file=sys.stderr,
            flush=True,
        )

    def _exit_hung(self, activity: _Activity) -> None:
        self._log(activity, "hangs in")
        print(f"exit code {EXIT_HUNG}; stacks of all threads:", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)
        self._timed_out = True
        is_process_0 = jax.process_index() == 0
        time.sleep(self._tick * (_GRACE_TICKS_OF_PROCESS_0 if is_process_0 else _GRACE_TICKS))
        os._exit(EXIT_HUNG)


def _timeout_from_environment() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    if not text:
        is_single_cpu_process = jax.process_count() == 1 and jax.default_backend() == "cpu"
        return 0.0 if is_single_cpu_process else DEFAULT_TIMEOUT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UserError(
            f"{TIMEOUT_VARIABLE}={text!r}: expected a number of seconds, "
            f"as in {TIMEOUT_VARIABLE}=600; 0 is no watch"
        )
    return seconds
