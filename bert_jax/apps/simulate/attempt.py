"""Runs one attempt of a simulated job: a subprocess for each host, watched to its end."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bert_jax.apps.simulate.scenario import Kill, Scenario
from bert_jax.io.parent_process import environment_of_child
from bert_jax.parallel.processes import (
    COORDINATOR,
    HEARTBEAT,
    LOCAL_DEVICES,
    NUM_PROCESSES,
    PROCESS_ID,
)
from bert_jax.parallel.rendezvous import TIMEOUT_VARIABLE as RENDEZVOUS
from bert_jax.runs.metrics import FILE as METRICS
from bert_jax.runs.metrics import last_lines
from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED, SAVED_MESSAGE, START_MESSAGE

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
        # Variables that the user has set win over the short timeouts of a simulation.
        **inherited,
    }
    variables |= {"JAX_PLATFORMS": "cpu", LOCAL_DEVICES: str(devices), "PYTHONUNBUFFERED": "1"}
    variables |= environment_of_child()
    if count > 1:
        variables |= {COORDINATOR: f"127.0.0.1:{port}", NUM_PROCESSES: str(count)}
        variables |= {PROCESS_ID: str(number)}
    return variables


POLL_SECONDS = 0.02
GRACE_SECONDS = HEARTBEAT_SECONDS + 15
"""How long hosts may take to exit after another host has failed, before they are killed."""


@dataclass(kw_only=True)
class Attempt:
    """Holds the result of one attempt.

    Attributes:
      num_hosts: the number of hosts, including missing ones.
      killed: the kill that happened, and the last step that was logged before it; None if none.
      resumed_from: {host: the step after which it reported to begin}.
      saved: {host: the step that it reported to have saved}.
      exit_codes: {host: its exit code, negative for a signal}, without missing hosts.
      first_failed_host: the first host that neither completed the run nor saved and exited.
      killed_by_simulator: the hosts that did not exit after another host had failed.
      errors: {failed host: its last error message}.
    """

    num_hosts: int
    killed: tuple[Kill, int] | None = None
    resumed_from: dict[int, int] = field(default_factory=dict)
    saved: dict[int, int] = field(default_factory=dict)
    exit_codes: dict[int, int] = field(default_factory=dict)
    first_failed_host: int | None = None
    killed_by_simulator: list[int] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)


def run_attempt(
    scenario: Scenario,
    attempt_index: int,
    *,
    on_line: Callable[[int, str], None],
    log: Callable[[str], None],
    next_signal: Callable[[], signal.Signals | None],
) -> Attempt:
    """Starts the hosts and returns when all have ended.

    Args:
      scenario: the hosts and kills of the simulation.
      attempt_index: the index of this attempt, from 0.
      on_line: called with (host, line) for every line that a host prints.
      log: called with every message of the simulator itself.
      next_signal: returns the next signal to forward to all hosts, or None.
    """
    num_hosts, port = scenario.num_hosts(attempt_index), free_port()
    attempt = Attempt(num_hosts=num_hosts)
    kill = scenario.kills[attempt_index] if attempt_index < len(scenario.kills) else None
    if kill and (checkpoint_step := newest_checkpoint_step(scenario.run)) >= kill.step:
        log(
            f"{kill.signal_to_send.name} at step {kill.step} is skipped: "
            f"step {checkpoint_step} is already saved"
        )
        kill = None
    metrics_tail = _MetricsTail(scenario.run / METRICS)
    with contextlib.ExitStack() as stack:
        hosts = []
        for number in range(num_hosts):
            if attempt_index == 0 and number in scenario.missing_hosts:
                log(f"host {number} is not started (--missing-host)")
                continue
            host_env = host_environment(number, num_hosts, scenario.devices_per_host, port)
            hosts.append(HostProcess(number, scenario.command, host_env, on_line))
            stack.callback(hosts[-1].close)
        failed_at: float | None = None
        while any(host.exit_code is None for host in hosts):
            if kill and (step := metrics_tail.newest_step()) >= kill.step:
                log(f"sending {kill.signal_to_send.name} to host {kill.host} after step {step}")
                _find_host(hosts, kill.host).send_signal(kill.signal_to_send)
                attempt.killed, kill = (kill, step), None
            if received_signal := next_signal():
                for host in hosts:
                    host.send_signal(received_signal)
            if failed_at is None and (failed := _first_failed(hosts)):
                failed_at, attempt.first_failed_host = time.monotonic(), failed.number
                end = describe_exit_code(failed.exit_code)
                log(f"host {failed.number} failed: {end}; waiting for the others to exit")
            if failed_at is not None and time.monotonic() - failed_at > GRACE_SECONDS:
                for host in [host for host in hosts if host.exit_code is None]:
                    log(
                        f"killing host {host.number}, which has not exited within {GRACE_SECONDS} s"
                    )
                    attempt.killed_by_simulator.append(host.number)
                    host.send_signal(signal.SIGKILL)
                # Infinity, so that the hosts are killed once.
                failed_at = float("inf")
            time.sleep(POLL_SECONDS)
    _collect_results(attempt, hosts)
    return attempt


def _collect_results(attempt: Attempt, hosts: list[HostProcess]) -> None:
    for host in hosts:
        exit_code = host.exit_code
        assert exit_code is not None
        attempt.exit_codes[host.number] = exit_code
        if host.resumed_from is not None:
            attempt.resumed_from[host.number] = host.resumed_from
        if host.saved is not None:
            attempt.saved[host.number] = host.saved
        if exit_code not in (EXIT_DONE, EXIT_PREEMPTED):
            attempt.errors[host.number] = host.error
    if attempt.first_failed_host is None and (failed := _first_failed(hosts)):
        attempt.first_failed_host = failed.number


def _find_host(hosts: list[HostProcess], number: int) -> HostProcess:
    return next(host for host in hosts if host.number == number)


def _first_failed(hosts: list[HostProcess]) -> HostProcess | None:
    """Returns a failed host, preferring one that was killed: it is why the others fail."""
    failed = [h for h in hosts if h.exit_code not in (None, EXIT_DONE, EXIT_PREEMPTED)]
    return min(failed, key=lambda host: host.exit_code != -signal.SIGKILL, default=None)


def describe_exit_code(exit_code: int | None) -> str:
    """Describes an exit code, as in "exit code 75" or "killed by SIGKILL"."""
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    return f"killed by {signal.Signals(-exit_code).name}"


def newest_checkpoint_step(run: Path) -> int:
    """Returns the step of the newest checkpoint in a run folder; 0 if there is none."""
    folder = run / "checkpoints"
    names = os.listdir(folder) if folder.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=0)


def free_port() -> int:
    """Returns a free port whose successor is free too, which the rendezvous needs."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port


class _MetricsTail:
    """Reads the newest step of a metrics file that this attempt replaces when it begins.

    The file of an earlier attempt is recognized by its inode and ignored.
    """

    def __init__(self, file: Path):
        self._file = file
        self._previous_inode = file.stat().st_ino if file.exists() else None

    def newest_step(self) -> int:
        try:
            # A resumed run replaces metrics.jsonl; until then the file has the steps of the
            # attempt before, which would trigger the kill at once.
            if self._file.stat().st_ino == self._previous_inode:
                return 0
            return int(json.loads(last_lines(self._file)[-1])["step"])
        except (OSError, ValueError, IndexError):  # not written yet
            return 0
