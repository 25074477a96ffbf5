"""Runs one host of a simulation as a subprocess with its own environment, and parses its output."""

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence

from bert_jax.distributed.processes import (
    COORDINATOR,
    HEARTBEAT,
    LOCAL_DEVICES,
    NUM_PROCESSES,
    PROCESS_ID,
)
from bert_jax.distributed.rendezvous import TIMEOUT_VARIABLE as RENDEZVOUS
from bert_jax.parent_process import environment_of_child
from bert_jax.train.preemption import SAVED_MESSAGE, START_MESSAGE

HEARTBEAT_SECONDS = 10
"""The heartbeat timeout after which hosts give up on a dead one; JAX's default is 100 s."""
RENDEZVOUS_SECONDS = 40
# Lines that gloo prints for each group of devices, and C++ stack frames of JAX's abort.
_NOISE = re.compile(
    r"\[Gloo\] Rank|.*Expected number of connected peer ranks|"
    r" {4}@ +0x|\*\*\* Check failure stack trace|$"
)
_PREFIX = r"^(?:process \d+ of \d+: )?"
_ERROR_PREFIXES = ("error: ", "watchdog: ")
_RESUMED = re.compile(rf"{_PREFIX}{START_MESSAGE} step (\d+)")
_SAVED = re.compile(rf"{_PREFIX}{SAVED_MESSAGE} step (\d+)")


class HostProcess:
    """Runs a simulated host: a `bert-jax pretrain` subprocess, started on construction.

    Args:
      number: the number of the host.
      command: the command to run.
      environment: the environment of the subprocess.
      on_line: called with (number, line) for each line that the host prints, in a thread.

    Attributes:
      resumed_from: the step after which the host reported to begin; None before that.
      saved: the step that the host reported to have saved before it exits; None if none.
      error: the last `error: ...` or `watchdog: ...` that it printed, else its last line.
    """

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        environment: dict[str, str],
        on_line: Callable[[int, str], None],
    ):
        self.number = number
        self.resumed_from: int | None = None
        self.saved: int | None = None
        self.error = ""
        self._on_line = on_line
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # the supervisor forwards Ctrl-C itself
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def exit_code(self) -> int | None:
        """Returns the exit code, negative for a signal; None while the host runs."""
        return self._process.poll()

    def send_signal(self, signal_number: signal.Signals) -> None:
        """Sends a signal, unless the host has ended."""
        self._process.send_signal(signal_number)

    def close(self) -> None:
        """Kills the host if it still runs, and reads the rest of its output."""
        if self.exit_code is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(timeout=5)  # its children may hold the pipe open

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for raw in stream:
                line = raw.rstrip("\n")
                if _NOISE.match(line):
                    continue
                if matched := _RESUMED.match(line):
                    self.resumed_from = int(matched[1])
                elif matched := _SAVED.match(line):
                    self.saved = int(matched[1])
                if line.startswith(_ERROR_PREFIXES) or not self.error.startswith(_ERROR_PREFIXES):
                    self.error = line
                self._on_line(self.number, line)


def host_environment(number: int, count: int, devices: int, port: int) -> dict[str, str]:
    """Returns the environment of host `number` of `count`, based on the current one."""
    distributed_variables = (COORDINATOR, NUM_PROCESSES, PROCESS_ID)
    inherited = {
        name: value for name, value in os.environ.items() if name not in distributed_variables
    }
    variables = {
        HEARTBEAT: str(HEARTBEAT_SECONDS),
        RENDEZVOUS: str(RENDEZVOUS_SECONDS),
        **inherited,
    }
    variables |= {"JAX_PLATFORMS": "cpu", LOCAL_DEVICES: str(devices), "PYTHONUNBUFFERED": "1"}
    variables |= environment_of_child()
    if count > 1:
        variables |= {COORDINATOR: f"127.0.0.1:{port}", NUM_PROCESSES: str(count)}
        variables |= {PROCESS_ID: str(number)}
    return variables
