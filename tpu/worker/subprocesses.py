"""Runs the trainer's processes: logs their output, forwards a stop request, combines exit codes."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpu import protocol
from tpu.worker.log import HostLog

_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class TrainerCommand:
    """Describes one process.

    Attributes:
      name: prefix of its lines in the log; empty for none.
      environment: variables in addition to the agent's own.
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]


class TrainerProcess:
    """Holds a running process and writes its output to the log."""

    def __init__(self, command: TrainerCommand, workdir: Path, log: HostLog):
        self._command, self._log, self._stop_requested = command, log, False
        self._process = subprocess.Popen(
            command.argv,
            cwd=workdir,
            env={**os.environ, **command.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._forward_output, name=command.name, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Returns its process id."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Returns the exit code, 128 + signal if it was killed, or None while it is running."""
        code = self._process.poll()
        if code is None:
            return None
        self._reader.join(timeout=10)
        return 128 - code if code < 0 else code

    def request_stop(self) -> None:
        """Sends SIGTERM; does nothing the second time."""
        if not self._stop_requested and self._process.poll() is None:
            self._process.terminate()
        self._stop_requested = True

    def _forward_output(self) -> None:
        prefix = f"[{self._command.name}] " if self._command.name else ""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._log.forward(prefix + line.decode("utf-8", errors="replace"))


def run_commands(
    commands: Sequence[TrainerCommand],
    workdir: Path,
    log: HostLog,
    should_stop: Callable[[], bool],
    on_started: Callable[[list[int]], None],
) -> int:
    """Runs all commands until they exit and returns one exit code for them.

    Args:
      workdir: their working directory.
      should_stop: returns whether to stop them; polled.
      on_started: receives the process ids.

    Returns:
      75 if one has saved and exited, or had nothing to save yet; else the first code except 0.
    """
    processes = [TrainerProcess(command, workdir, log) for command in commands]
    on_started([process.pid for process in processes])
    codes: list[int | None] = [None]
    while None in codes:
        if should_stop():
            for process in processes:
                process.request_stop()
        codes = [process.exit_code() for process in processes]
        time.sleep(_POLL_SECONDS)
    return combined_exit_code(
        [code for code in codes if code is not None], stop_requested=should_stop()
    )


def combined_exit_code(codes: Sequence[int], *, stop_requested: bool) -> int:
    """Combines the exit codes of several processes into one."""
    saved_codes = {protocol.EXIT_SAVED} | ({protocol.EXIT_TERMINATED} if stop_requested else set())
    if saved_codes & set(codes):
        return protocol.EXIT_SAVED
    return next((code for code in codes if code != protocol.EXIT_DONE), protocol.EXIT_DONE)
