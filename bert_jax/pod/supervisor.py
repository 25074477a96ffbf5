"""What supervises a simulated pod: starts all hosts again from the newest checkpoint, or gives up.

every host ended with 0                      the run is complete
every host ended with 75                     all have saved: start again
a host was killed, aborted or hung (70)      start again, while checkpoints get further
anything else                                the same would happen again: give up
"""

import contextlib
import signal
import sys
import threading
import time
from dataclasses import dataclass
from types import FrameType, TracebackType

from bert_jax.pod.life import Life, live, meaning, newest_checkpoint
from bert_jax.pod.plan import Plan
from bert_jax.train.preemption import (
    EXIT_DONE,
    EXIT_HUNG,
    EXIT_PREEMPTED,
    EXIT_USER_ERROR,
    caught,
)
from bert_jax.train.progress import duration

MOST_WITHOUT_PROGRESS = 3
"""Starts in a row that got no further than the one before."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """All lives of a simulation, and its exit code."""

    code: int
    lives: tuple[Life, ...]


class Supervisor:
    """Runs a plan while it is entered; SIGTERM and Ctrl-C are passed on to all hosts.

    A second Ctrl-C kills them. What hosts print goes to stderr as it comes, with their numbers.
    """

    def __init__(self, plan: Plan):
        self._plan = plan
        self._stack = contextlib.ExitStack()
        self._asked: list[signal.Signals] = []
        self._asked_before = False
        self._printing = threading.Lock()
        self._began = time.monotonic()

    def __enter__(self) -> "Supervisor":
        self._stack.enter_context(caught((signal.SIGTERM, signal.SIGINT), self._note))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def run(self) -> Outcome:
        """Lives until the run is complete, or until there is no use in another one."""
        lives: list[Life] = []
        idle = 0
        while True:
            before = newest_checkpoint(self._plan.run)
            count = self._plan.hosts_at(len(lives))
            where = f"from step {before}" if before else "from the beginning"
            self._say(f"start {len(lives) + 1}: {count} x {self._plan.devices} devices, {where}")
            life = live(self._plan, len(lives), hear=self._hear, say=self._say, stop=self._stop)
            lives.append(life)
            codes = set(life.codes.values())
            self._say(f"start {len(lives)} has ended: {told(life)}")
            if codes == {EXIT_DONE}:
                return Outcome(code=EXIT_DONE, lives=tuple(lives))
            if self._asked_before:
                code = EXIT_PREEMPTED if codes == {EXIT_PREEMPTED} else EXIT_USER_ERROR
                return Outcome(code=code, lives=tuple(lives))
            further = life.killed is not None or newest_checkpoint(self._plan.run) > before
            idle = 0 if further else idle + 1
            if not _repeatable(life) or idle >= MOST_WITHOUT_PROGRESS:
                return Outcome(code=_worst(life), lives=tuple(lives))

    def _note(self, number: int, frame: FrameType | None) -> None:
        again = self._asked_before and number == signal.SIGINT
        self._asked.append(signal.SIGKILL if again else signal.SIGTERM)
        self._asked_before = True

    def _stop(self) -> signal.Signals | None:
        return self._asked.pop() if self._asked else None

    def _hear(self, host: int, line: str) -> None:
        self._print(f"[host {host}] {line}")

    def _say(self, line: str) -> None:
        self._print(f"[pod {duration(time.monotonic() - self._began)}] {line}")

    def _print(self, line: str) -> None:
        with self._printing:
            print(line, file=sys.stderr, flush=True)


def told(life: Life) -> str:
    """The exit codes of one start, as "exit code 0 on hosts 0, 1; killed by SIGKILL on host 2"."""
    groups: dict[int, list[int]] = {}
    for host, code in sorted(life.codes.items()):
        groups.setdefault(code, []).append(host)
    return "; ".join(f"{meaning(code)} on {hosts(these)}" for code, these in groups.items())


def hosts(these: list[int]) -> str:
    """As "host 2" or "hosts 0, 1"."""
    return f"host{'s' * (len(these) > 1)} {', '.join(map(str, these))}"


def _repeatable(life: Life) -> bool:
    """Whether another start may get further, by the host that failed first."""
    if life.first_failed is None:
        return True  # all have saved, or are done
    code = life.codes[life.first_failed]
    return code < 0 or code == EXIT_HUNG


def _worst(life: Life) -> int:
    code = EXIT_USER_ERROR if life.first_failed is None else life.codes[life.first_failed]
    return code if code > 0 else EXIT_USER_ERROR
