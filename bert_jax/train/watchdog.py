"""Ends a process whose training step, evaluation or save hangs.

When one host of several stops, the others wait for it forever and none of them fails. Therefore
each process measures how long its current activity takes. When that exceeds a timeout, the process
prints its process id, host and activity to stderr, dumps the stacks of all threads, and exits with
code 70 (EX_SOFTWARE). A supervisor then restarts the run from the newest checkpoint; nothing is
saved at the hang. The host whose activity or stack differs from the others is usually the cause.

Compilation is not monitored. A hang that holds Python's global interpreter lock is only detected by
the other hosts. Time during which the process was suspended (Ctrl-Z, a paused machine) does not
count, and hosts do not compare clocks.
"""

import contextlib
import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from types import TracebackType

import jax

from bert_jax.errors import UserError
from bert_jax.runs.hooks import StepEvent
from bert_jax.train.preemption import EXIT_HUNG

TIMEOUT_VARIABLE = "BERT_JAX_WATCHDOG_SECONDS"
DEFAULT_TIMEOUT_SECONDS = 600.0
TIMEOUT_FACTORS = {"evaluate": 6.0, "conclude": 6.0}
"""Activities with many steps, and how many times the timeout each of them may take.

After one timeout a line is printed, and the process continues.
"""
_MAX_TICK = 5.0
# Ticks between the report and the exit, so that other hanging processes can report as well.
# Process 0 exits last, because JAX aborts the other processes when it is gone.
_GRACE_TICKS, _GRACE_TICKS_OF_PROCESS_0 = 2, 3


@dataclass
class _Activity:
    name: str
    step: int
    seconds: float = 0.0
    reported: bool = False


class Watchdog:
    """Monitors training steps as a hook, and other activities inside `watching(...)`.

    Monitors only inside its own `with` block.

    Args:
      timeout_seconds: limit for a step or a save; 0 disables the watchdog. None: the environment
        variable BERT_JAX_WATCHDOG_SECONDS, by default 600, and 0 for a single process on CPU.

    Raises:
      UserError: the environment variable is not a number.
    """

    every = 1

    def __init__(self, timeout_seconds: float | None = None):
        self.timeout_seconds = (
            _timeout_from_environment() if timeout_seconds is None else timeout_seconds
        )
        self._tick = min(_MAX_TICK, max(0.05, self.timeout_seconds / 10))
        self._activity: _Activity | None = None
        self._last_completed = "nothing"
        self._stop_event = threading.Event()
        self._timed_out = False

    def __enter__(self) -> "Watchdog":
        if self.timeout_seconds > 0:
            # A thread, because Python runs signal handlers on the main thread only, which hangs.
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
        """Starts the timer of a new activity, such as "step" or "save"."""
        self._activity = _Activity(name, step)

    def pause(self) -> None:
        """Monitors nothing until the next `start`."""
        self._activity = None

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Monitors nothing inside; restarts the timer of the previous activity afterwards."""
        previous = self._activity
        self.pause()
        yield
        self._restart(previous)

    @contextlib.contextmanager
    def watching(self, name: str, step: int) -> Generator[None]:
        """Monitors `name` inside; restarts the timer of the previous activity afterwards."""
        previous = self._activity
        self.start(name, step)
        yield
        self._last_completed = f"{name} {step}"
        self._restart(previous)

    def _restart(self, activity: _Activity | None) -> None:
        self._activity = _Activity(activity.name, activity.step) if activity else None

    def __call__(self, event: StepEvent) -> None:
        """Restarts the timer for the next training step."""
        self._last_completed = f"step {event.step}"
        if event.step < event.total_steps:
            self.start("step", event.step + 1)
        else:
            self.pause()

    def close(self) -> None:
        """Stops monitoring.

        After a timeout it exits with code 70, so that an error that follows from the hang does not
        change the exit code.
        """
        if self._timed_out:
            os._exit(EXIT_HUNG)
        self._stop_event.set()

    def _watch(self) -> None:
        last_tick = time.monotonic()
        while not self._stop_event.wait(self._tick):
            now = time.monotonic()
            # A much longer tick means that the process was suspended: that time does not count.
            elapsed, last_tick = min(now - last_tick, 3 * self._tick), now
            activity = self._activity
            if activity is None:
                continue
            activity.seconds += elapsed
            if activity.seconds > self.timeout_seconds * TIMEOUT_FACTORS.get(activity.name, 1.0):
                self._exit_hung(activity)
            elif activity.seconds > self.timeout_seconds and not activity.reported:
                # Reported before the limit, because another host may end the run before this one.
                activity.reported = True
                self._report(activity, "is still in")

    def _report(self, activity: _Activity, status: str) -> None:
        process_text = (
            f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}"
        )
        _print(
            f"watchdog: {process_text} {status}: {activity.name} {activity.step}, "
            f"for {activity.seconds:.0f} s; last completed: {self._last_completed} "
            f"({TIMEOUT_VARIABLE}={self.timeout_seconds:g})"
        )

    def _exit_hung(self, activity: _Activity) -> None:
        self._report(activity, "hangs in")
        _print(f"exit code {EXIT_HUNG}; stacks of all threads:")
        faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)
        self._timed_out = True
        is_process_0 = jax.process_index() == 0
        time.sleep(self._tick * (_GRACE_TICKS_OF_PROCESS_0 if is_process_0 else _GRACE_TICKS))
        os._exit(EXIT_HUNG)


def _print(line: str) -> None:
    # Not `logging`: the hanging thread may hold the lock of a log handler. An error, as after the
    # terminal was closed, would end the thread of the watchdog, and the process would hang forever.
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


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
            f"for example {TIMEOUT_VARIABLE}=600, or 0 to disable the watchdog"
        )
    return seconds
