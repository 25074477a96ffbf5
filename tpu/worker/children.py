"""The processes that train: started, listened to, asked once to stop, and what came of them."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpu import protocol
from tpu.worker.log import Log

_LOOK_EVERY = 0.2  # seconds


@dataclass(frozen=True, kw_only=True)
class Command:
    """One process.

    Attributes:
      name: stands before each of its lines, if there are several.
      words: the command.
      environment: what it has besides the agent's own variables.
    """

    name: str
    words: tuple[str, ...]
    environment: Mapping[str, str]


class Child:
    """A running process whose lines go to the log."""

    def __init__(self, command: Command, work: Path, log: Log):
        self._command, self._log, self._asked = command, log, False
        self._process = subprocess.Popen(
            command.words,
            cwd=work,
            env={**os.environ, **command.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._read, name=command.name, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def code(self) -> int | None:
        """Its exit code as a shell has it, 128 + signal for one that was killed; None: it runs."""
        code = self._process.poll()
        if code is None:
            return None
        self._reader.join(timeout=10)
        return 128 - code if code < 0 else code

    def ask_to_stop(self) -> None:
        """SIGTERM, the first time."""
        if not self._asked and self._process.poll() is None:
            self._process.terminate()
        self._asked = True

    def _read(self) -> None:
        prefix = f"[{self._command.name}] " if self._command.name else ""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._log.pass_on(prefix + line.decode("utf-8", errors="replace"))


def run(
    commands: Sequence[Command],
    work: Path,
    log: Log,
    stopping: Callable[[], bool],
    started: Callable[[list[int]], None],
) -> int:
    """Runs all commands to their ends and returns one code for them.

    Args:
      work: their working folder.
      stopping: whether they shall be asked to stop; looked at all the time.
      started: told the processes' numbers.

    Returns:
      75 if one has saved and left, or had nothing to save yet; else the first that is not 0.
    """
    children = [Child(command, work, log) for command in commands]
    started([child.pid for child in children])
    codes: list[int | None] = [None]
    while None in codes:
        if stopping():
            for child in children:
                child.ask_to_stop()
        codes = [child.code() for child in children]
        time.sleep(_LOOK_EVERY)
    return combined([code for code in codes if code is not None], asked=stopping())


def combined(codes: Sequence[int], *, asked: bool) -> int:
    """One code for several processes; `asked`: they had been asked to stop."""
    saved = {protocol.EXIT_SAVED} | ({protocol.EXIT_TERMINATED} if asked else set())
    if saved & set(codes):
        return protocol.EXIT_SAVED
    return next((code for code in codes if code != protocol.EXIT_DONE), protocol.EXIT_DONE)
