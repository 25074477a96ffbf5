"""One life of a simulated pod: all hosts started together, until the last one has ended."""

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
from bert_jax.simulate.scenario import Kill, Scenario
from bert_jax.simulate.simulated_host import HEARTBEAT_SECONDS, HostProcess, host_environment
from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED

POLL_SECONDS = 0.02  # seconds
GRACE_SECONDS = HEARTBEAT_SECONDS + 15
"""What hosts have to notice that another one has failed, before they are ended."""
_TAIL_BYTES = 4096  # bytes of the log in which its last line is looked for


@dataclass(kw_only=True)
class Attempt:
    """What came of one start.

    Attributes:
      hosts: how many there were to be.
      killed: the accident that took place, with the step that was logged last before it.
      begins, saved: for each host that said so, the step it began after, and the one it saved.
      codes: each host's exit code, negative for a signal; dropped hosts are not in it.
      first_failed: the host that failed first, of those that were not done and had not saved.
      ended_here: hosts that did not end by themselves when another had failed.
      errors: what failed hosts said last.
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
      start: the number of this start, from 0 on.
      hear: called with (host, line) for what hosts print.
      say: called with what the simulator itself has to say.
      stop: a signal that is to be passed on to all hosts, each once; None: none.
    """
    num_hosts, port = scenario.num_hosts(attempt_index), free_port()
    attempt = Attempt(num_hosts=num_hosts)
    kill = scenario.kills[attempt_index] if attempt_index < len(scenario.kills) else None
    if kill and (checkpoint_step := newest_checkpoint_step(scenario.run)) >= kill.step:
        log(
            f"step {checkpoint_step} is saved already: "
            f"no {kill.signal_to_send.name} at step {kill.step}"
        )
        kill = None
    metrics_tail = _MetricsTail(scenario.run / METRICS)
    with contextlib.ExitStack() as stack:
        hosts = []
        for number in range(num_hosts):
            if attempt_index == 0 and number in scenario.missing_hosts:
                log(f"host {number} is not started")
                continue
            host_env = host_environment(number, num_hosts, scenario.devices_per_host, port)
            hosts.append(HostProcess(number, scenario.command, host_env, on_line))
            stack.callback(hosts[-1].close)
        failed_at: float | None = None
        while any(host.exit_code is None for host in hosts):
            if kill and (step := metrics_tail.newest_step()) >= kill.step:
                log(f"{kill.signal_to_send.name} to host {kill.host}; step {step} is logged")
                _find_host(hosts, kill.host).send_signal(kill.signal_to_send)
                attempt.killed, kill = (kill, step), None
            if received_signal := next_signal():
                for host in hosts:
                    host.send_signal(received_signal)
            if failed_at is None and (failed := _first_failed(hosts)):
                failed_at, attempt.first_failed_host = time.monotonic(), failed.number
                end = describe_exit_code(failed.exit_code)
                log(f"host {failed.number} has ended: {end}; the others follow")
            if failed_at is not None and time.monotonic() - failed_at > GRACE_SECONDS:
                for host in [host for host in hosts if host.exit_code is None]:
                    log(f"host {host.number} has not ended in {GRACE_SECONDS} s and is killed")
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
    """Of those that have failed, one that was killed: the others fail because of it."""
    failed = [h for h in hosts if h.exit_code not in (None, EXIT_DONE, EXIT_PREEMPTED)]
    return min(failed, key=lambda host: host.exit_code != -signal.SIGKILL, default=None)


def describe_exit_code(exit_code: int | None) -> str:
    """An exit code in words: "75", "SIGKILL"."""
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    return f"killed by {signal.Signals(-exit_code).name}"


def newest_checkpoint_step(run: Path) -> int:
    """The step of the newest checkpoint in a run's folder; 0 if there is none."""
    folder = run / "checkpoints"
    names = os.listdir(folder) if folder.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=0)


def free_port() -> int:
    """A port of this machine that is free, as is the one after it, where processes meet."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port


class _MetricsTail:
    """The newest step in a log that is written anew when the run begins."""

    def __init__(self, file: Path):
        self._file = file
        self._previous_inode = file.stat().st_ino if file.exists() else None

    def newest_step(self) -> int:
        try:
            if self._file.stat().st_ino == self._previous_inode:
                return 0
            with self._file.open("rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                stream.seek(max(0, size - _TAIL_BYTES))
                *_, last, _ = stream.read().split(b"\n")
            return int(json.loads(last)["step"])
        except (OSError, ValueError):  # not begun
            return 0
