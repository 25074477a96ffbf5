"""Before JAX starts: every process of a run reports to process 0, and all hear who is missing.

JAX itself waits five minutes for a process that is absent, and then aborts all others with a C++
stack. Here process 0 listens for a minute on the port beside the coordinator's, for one line of
JSON from each other process, and answers all of them alike: go on, or what is wrong.

Each process counts seconds on its own clock alone. Standard library only, no jax.
"""

import json
import os
import selectors
import socket
import time
from dataclasses import asdict

from bert_jax.errors import UserError
from bert_jax.train.attendance import Report, numbers, problems

SECONDS = "BERT_JAX_RENDEZVOUS_SECONDS"
DEFAULT_SECONDS = 60.0
# What the launch scripts call a failed preflight: not the training is wrong, but where it started.
EXIT_NOT_TOGETHER = 76

_HELLO = "bert_jax rendezvous 1"
_LONGEST_LINE = 1 << 16  # bytes
_ANSWER_MARGIN = 15.0  # seconds that an answer may come later than process 0's own deadline


class NotTogether(UserError):
    """The processes of a run did not come together; each of them says the same."""

    exit_code = EXIT_NOT_TOGETHER


def meet(coordinator: str, own: Report, *, seconds: float | None = None) -> None:
    """Returns when all `own.count` processes are there and fit together.

    Args:
      coordinator: HOST:PORT of JAX's coordinator; the port after it is used here.
      seconds: how long to wait; BERT_JAX_RENDEZVOUS_SECONDS, or 60.

    Raises:
      NotTogether: on every process alike: which are missing and where they were expected, which
        number came twice, or which process has another version.
    """
    host, port = address(coordinator)
    wait = _seconds() if seconds is None else seconds
    if own.process == 0:
        problem = _Gathering(own, host, port).run(wait)
    else:
        problem = _report(own, host, port, wait)
    if problem:
        raise NotTogether(problem)


def address(coordinator: str) -> tuple[str, int]:
    """Where processes meet: the coordinator's host, and the port beside its own.

    Raises:
      UserError: not HOST:PORT.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"coordinator {coordinator!r}: expected HOST:PORT, as in 10.0.0.2:8476")
    return host.strip("[]"), int(port) + (1 if int(port) < 65535 else -1)


class _Gathering:
    """Process 0's side: collects one report from each, then answers all."""

    def __init__(self, own: Report, host: str, port: int):
        self._own, self._where = own, f"{host}:{port}"
        self._reports = {own.process: own}
        self._heard: dict[socket.socket, bytes] = {}  # what has come of a line so far
        self._from: dict[socket.socket, Report] = {}
        self._problem = ""
        try:
            self._listener = _listen(host, port)
        except OSError as error:
            raise NotTogether(
                f"process 0 cannot listen on port {port}, beside the coordinator's, on "
                f"{own.host}: {error.strerror or error}; does another run, or another process "
                "with number 0, use it? Choose another port for BERT_JAX_COORDINATOR"
            ) from None

    def run(self, seconds: float) -> str:
        """Waits and answers; returns what is wrong, or ""."""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector, self._listener:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._complete and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    self._hear(selector, key.fileobj)
            self._problem = self._problem or self._verdict(seconds)
            answer = json.dumps({"hello": _HELLO, "problem": self._problem}).encode() + b"\n"
            for connection in self._heard:
                connection.settimeout(5.0)
                try:
                    connection.sendall(answer)
                except OSError:
                    continue  # it has gone, and will be missed by JAX
                finally:
                    connection.close()
        return self._problem

    @property
    def _complete(self) -> bool:
        return bool(self._problem) or len(self._reports) == self._own.count

    def _hear(self, selector: selectors.BaseSelector, source: object) -> None:
        if source is self._listener:
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._heard[connection] = b""
            selector.register(connection, selectors.EVENT_READ)
            return
        assert isinstance(source, socket.socket)
        try:
            data = source.recv(_LONGEST_LINE)
        except OSError:
            data = b""
        self._heard[source] += data
        if data and b"\n" not in self._heard[source] and len(self._heard[source]) < _LONGEST_LINE:
            return
        report = _read(self._heard[source]) if data else None
        if report is None or source in self._from:  # it has gone, or is none of ours
            selector.unregister(source)
            self._forget(source)
            return
        self._from[source] = report
        self._add(report)

    def _forget(self, connection: socket.socket) -> None:
        report = self._from.pop(connection, None)
        if report is not None:
            self._reports.pop(report.process, None)
        del self._heard[connection]
        connection.close()

    def _add(self, report: Report) -> None:
        if report.count != self._own.count or not 0 <= report.process < report.count:
            self._problem = (
                f"process {report.process} ({report.place}) was told of {report.count} processes, "
                f"process 0 ({self._own.place}) of {self._own.count}; give all the same number "
                "(BERT_JAX_NUM_PROCESSES)"
            )
        elif report.process in self._reports:
            self._problem = (
                f"two processes have the number {report.process}: "
                f"{self._reports[report.process].place} and {report.place}; give each a number "
                "of its own (BERT_JAX_PROCESS_ID)"
            )
        else:
            self._reports[report.process] = report

    def _verdict(self, seconds: float) -> str:
        lines, count = [], self._own.count
        missing = sorted(set(range(count)) - set(self._reports))
        if missing:
            there = ", ".join(f"{n} on {self._reports[n].host}" for n in sorted(self._reports))
            lines.append(
                f"{numbers(missing)} of {count} did not report to process 0 at {self._where} "
                f"within {seconds:g} s; there are {there}; start the same command on every host, "
                f"or look at what the missing said ({SECONDS} waits longer)"
            )
        return "; ".join(lines + problems(self._reports))


def _report(own: Report, host: str, port: int, seconds: float) -> str:
    """Reports to process 0 and returns its answer; tries until somebody is there."""
    line = json.dumps({"hello": _HELLO, **asdict(own)}).encode() + b"\n"
    deadline, reason = time.monotonic() + seconds, "no answer"
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=max(0.1, min(5.0, left))) as link:
                link.settimeout(seconds + _ANSWER_MARGIN)
                link.sendall(line)
                with link.makefile("rb") as stream:
                    received = stream.readline(_LONGEST_LINE)
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
        else:
            answer = _json(received)
            if answer is not None:
                return str(answer.get("problem", ""))
            reason = "it was closed" if not received else "something else listens there"
        time.sleep(min(0.2, max(0.0, deadline - time.monotonic())))
    return (
        f"process {own.process} of {own.count} did not find process 0 at {host}:{port} within "
        f"{seconds:g} s ({reason}); is process 0 running, and BERT_JAX_COORDINATOR its address "
        f"on every host? ({SECONDS} waits longer)"
    )


def _listen(host: str, port: int) -> socket.socket:
    """On this machine alone where processes meet on it, else on all of its addresses."""
    if host == "localhost" or host.startswith("127."):
        return socket.create_server(("127.0.0.1" if host == "localhost" else host, port))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _read(line: bytes) -> Report | None:
    data = _json(line)
    if data is None:
        return None
    try:
        report = Report(**{name: data[name] for name in Report.__dataclass_fields__})
        valid = isinstance(report.process, int) and isinstance(report.count, int)
        return report if valid and isinstance(report.versions, dict) else None
    except KeyError:
        return None


def _json(line: bytes) -> dict | None:
    try:
        data = json.loads(line)
    except ValueError:
        return None
    return data if isinstance(data, dict) and data.get("hello") == _HELLO else None


def _seconds() -> float:
    text = os.environ.get(SECONDS, "")
    try:
        seconds = float(text or DEFAULT_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UserError(f"{SECONDS}={text!r}: expected a number of seconds, as in {SECONDS}=120")
    return seconds
