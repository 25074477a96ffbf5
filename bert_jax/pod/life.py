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

from bert_jax.pod.host import HEARTBEAT_SECONDS, Host, environment
from bert_jax.pod.plan import Kill, Plan
from bert_jax.train.metrics_log import FILE as METRICS
from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED

LOOK_EVERY = 0.02  # seconds
GRACE_SECONDS = HEARTBEAT_SECONDS + 15
"""What hosts have to notice that another one has failed, before they are ended."""
_TAIL = 4096  # bytes of the log in which its last line is looked for


@dataclass(kw_only=True)
class Life:
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

    hosts: int
    killed: tuple[Kill, int] | None = None
    begins: dict[int, int] = field(default_factory=dict)
    saved: dict[int, int] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    first_failed: int | None = None
    ended_here: list[int] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)


def live(
    plan: Plan,
    start: int,
    *,
    hear: Callable[[int, str], None],
    say: Callable[[str], None],
    stop: Callable[[], signal.Signals | None],
) -> Life:
    """Starts the hosts and returns when all have ended.

    Args:
      start: the number of this start, from 0 on.
      hear: called with (host, line) for what hosts print.
      say: called with what the simulator itself has to say.
      stop: a signal that is to be passed on to all hosts, each once; None: none.
    """
    count, port = plan.hosts_at(start), free_port()
    life = Life(hosts=count)
    kill = plan.kills[start] if start < len(plan.kills) else None
    if kill and (done := newest_checkpoint(plan.run)) >= kill.step:
        say(f"step {done} is saved already: no {kill.signal.name} at step {kill.step}")
        kill = None
    log = _Log(plan.run / METRICS)
    with contextlib.ExitStack() as stack:
        hosts = []
        for number in range(count):
            if start == 0 and number in plan.dropped:
                say(f"host {number} is not started")
                continue
            around = environment(number, count, plan.devices, port)
            hosts.append(Host(number, plan.command, around, hear))
            stack.callback(hosts[-1].close)
        failed_at: float | None = None
        while any(host.code is None for host in hosts):
            if kill and (step := log.newest_step()) >= kill.step:
                say(f"{kill.signal.name} to host {kill.host}; step {step} is logged")
                _host(hosts, kill.host).send(kill.signal)
                life.killed, kill = (kill, step), None
            if passed_on := stop():
                for host in hosts:
                    host.send(passed_on)
            if failed_at is None and (failed := _failed(hosts)):
                failed_at, life.first_failed = time.monotonic(), failed.number
                say(f"host {failed.number} has ended: {meaning(failed.code)}; the others follow")
            if failed_at is not None and time.monotonic() - failed_at > GRACE_SECONDS:
                for host in [host for host in hosts if host.code is None]:
                    say(f"host {host.number} has not ended in {GRACE_SECONDS} s and is killed")
                    life.ended_here.append(host.number)
                    host.send(signal.SIGKILL)
                failed_at = float("inf")
            time.sleep(LOOK_EVERY)
    _record(life, hosts)
    return life


def _record(life: Life, hosts: list[Host]) -> None:
    for host in hosts:
        code = host.code
        assert code is not None
        life.codes[host.number] = code
        if host.begins is not None:
            life.begins[host.number] = host.begins
        if host.saved is not None:
            life.saved[host.number] = host.saved
        if code not in (EXIT_DONE, EXIT_PREEMPTED):
            life.errors[host.number] = host.error
    if life.first_failed is None and (failed := _failed(hosts)):
        life.first_failed = failed.number


def _host(hosts: list[Host], number: int) -> Host:
    return next(host for host in hosts if host.number == number)


def _failed(hosts: list[Host]) -> Host | None:
    """Of those that have failed, one that was killed: the others fail because of it."""
    failed = [h for h in hosts if h.code not in (None, EXIT_DONE, EXIT_PREEMPTED)]
    return min(failed, key=lambda host: host.code != -signal.SIGKILL, default=None)


def meaning(code: int | None) -> str:
    """An exit code in words: "75", "SIGKILL"."""
    if code is None or code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}"


def newest_checkpoint(run: Path) -> int:
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


class _Log:
    """The newest step in a log that is written anew when the run begins."""

    def __init__(self, file: Path):
        self._file = file
        self._former = file.stat().st_ino if file.exists() else None

    def newest_step(self) -> int:
        try:
            if self._file.stat().st_ino == self._former:
                return 0
            with self._file.open("rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                stream.seek(max(0, size - _TAIL))
                *_, last, _ = stream.read().split(b"\n")
            return int(json.loads(last)["step"])
        except (OSError, ValueError):  # not begun
            return 0
