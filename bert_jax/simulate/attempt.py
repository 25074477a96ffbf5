"""Runs one attempt of a simulated run: starts all hosts and waits until all have ended."""

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bert_jax.runs.metrics import FILE as METRICS
from bert_jax.runs.metrics import last_lines
from bert_jax.simulate.scenario import Kill, Scenario
from bert_jax.simulate.simulated_host import HEARTBEAT_SECONDS, HostProcess, host_environment
from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED

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
            if self._file.stat().st_ino == self._previous_inode:
                return 0
            return int(json.loads(last_lines(self._file)[-1])["step"])
        except (OSError, ValueError, IndexError):  # not written yet
            return 0
