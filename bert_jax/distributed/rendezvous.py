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

from bert_jax.distributed.process_info import ProcessInfo, format_processes, mismatches
from bert_jax.errors import UserError

TIMEOUT_VARIABLE = "BERT_JAX_RENDEZVOUS_SECONDS"
DEFAULT_TIMEOUT_SECONDS = 60.0
# What the launch scripts call a failed preflight: not the training is wrong, but where it started.
EXIT_RENDEZVOUS_FAILED = 76

_PROTOCOL = "bert_jax rendezvous 1"
_MAX_LINE_BYTES = 1 << 16  # bytes
_REPLY_MARGIN_SECONDS = 15.0  # seconds that an answer may come later than process 0's own deadline


class RendezvousError(UserError):
    """The processes of a run did not come together; each of them says the same."""

    exit_code = EXIT_RENDEZVOUS_FAILED


def wait_for_all_processes(
    coordinator: str, own_info: ProcessInfo, *, timeout_seconds: float | None = None
) -> None:
    """Returns when all `own.count` processes are there and fit together.

    Args:
      coordinator: HOST:PORT of JAX's coordinator; the port after it is used here.
      seconds: how long to wait; BERT_JAX_RENDEZVOUS_SECONDS, or 60.

    Raises:
      NotTogether: on every process alike: which are missing and where they were expected, which
        number came twice, or which process has another version.
    """
    host, port = rendezvous_address(coordinator)
    timeout = _timeout_from_environment() if timeout_seconds is None else timeout_seconds
    if own_info.process_id == 0:
        problem = _RendezvousServer(own_info, host, port).run(timeout)
    else:
        problem = _report_to_process_0(own_info, host, port, timeout)
    if problem:
        raise RendezvousError(problem)


def rendezvous_address(coordinator: str) -> tuple[str, int]:
    """Where processes meet: the coordinator's host, and the port beside its own.

    Raises:
      UserError: not HOST:PORT.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"coordinator {coordinator!r}: expected HOST:PORT, as in 10.0.0.2:8476")
    return host.strip("[]"), int(port) + (1 if int(port) < 65535 else -1)


class _RendezvousServer:
    """Process 0's side: collects one report from each, then answers all."""

    def __init__(self, own_info: ProcessInfo, host: str, port: int):
        self._own_info, self._address = own_info, f"{host}:{port}"
        self._infos = {own_info.process_id: own_info}
        self._buffers: dict[socket.socket, bytes] = {}  # what has come of a line so far
        self._info_by_connection: dict[socket.socket, ProcessInfo] = {}
        self._problem = ""
        try:
            self._listener = _listen(host, port)
        except OSError as error:
            raise RendezvousError(
                f"process 0 cannot listen on port {port}, beside the coordinator's, on "
                f"{own_info.host}: {error.strerror or error}; does another run, or another process "
                "with number 0, use it? Choose another port for BERT_JAX_COORDINATOR"
            ) from None

    def run(self, timeout_seconds: float) -> str:
        """Waits and answers; returns what is wrong, or ""."""
        deadline = time.monotonic() + timeout_seconds
        with selectors.DefaultSelector() as selector, self._listener:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._complete and (remaining := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(remaining):
                    self._receive(selector, key.fileobj)
            self._problem = self._problem or self._find_problems(timeout_seconds)
            reply = json.dumps({"hello": _PROTOCOL, "problem": self._problem}).encode() + b"\n"
            for connection in self._buffers:
                connection.settimeout(5.0)
                try:
                    connection.sendall(reply)
                except OSError:
                    continue  # it has gone, and will be missed by JAX
                finally:
                    connection.close()
        return self._problem

    @property
    def _complete(self) -> bool:
        return bool(self._problem) or len(self._infos) == self._own_info.num_processes

    def _receive(self, selector: selectors.BaseSelector, source: object) -> None:
        if source is self._listener:
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._buffers[connection] = b""
            selector.register(connection, selectors.EVENT_READ)
            return
        assert isinstance(source, socket.socket)
        try:
            data = source.recv(_MAX_LINE_BYTES)
        except OSError:
            data = b""
        self._buffers[source] += data
        if (
            data
            and b"\n" not in self._buffers[source]
            and len(self._buffers[source]) < _MAX_LINE_BYTES
        ):
            return
        info = _parse_info(self._buffers[source]) if data else None
        if info is None or source in self._info_by_connection:  # it has gone, or is none of ours
            selector.unregister(source)
            self._drop_connection(source)
            return
        self._info_by_connection[source] = info
        self._register(info)

    def _drop_connection(self, connection: socket.socket) -> None:
        info = self._info_by_connection.pop(connection, None)
        if info is not None:
            self._infos.pop(info.process_id, None)
        del self._buffers[connection]
        connection.close()

    def _register(self, info: ProcessInfo) -> None:
        if (
            info.num_processes != self._own_info.num_processes
            or not 0 <= info.process_id < info.num_processes
        ):
            self._problem = (
                f"process {info.process_id} ({info.location}) was told of {info.num_processes} "
                f"processes, process 0 ({self._own_info.location}) of "
                f"{self._own_info.num_processes}; give all the same number (BERT_JAX_NUM_PROCESSES)"
            )
        elif info.process_id in self._infos:
            self._problem = (
                f"two processes have the number {info.process_id}: "
                f"{self._infos[info.process_id].location} and {info.location}; give each a number "
                "of its own (BERT_JAX_PROCESS_ID)"
            )
        else:
            self._infos[info.process_id] = info

    def _find_problems(self, timeout_seconds: float) -> str:
        lines, num_processes = [], self._own_info.num_processes
        missing = sorted(set(range(num_processes)) - set(self._infos))
        if missing:
            present = ", ".join(f"{n} on {self._infos[n].host}" for n in sorted(self._infos))
            lines.append(
                f"{format_processes(missing)} of {num_processes} did not report to process 0 at "
                f"{self._address} within {timeout_seconds:g} s; there are {present}; start the "
                "same command on every host, "
                f"or look at what the missing said ({TIMEOUT_VARIABLE} waits longer)"
            )
        return "; ".join(lines + mismatches(self._infos))


def _report_to_process_0(
    own_info: ProcessInfo, host: str, port: int, timeout_seconds: float
) -> str:
    """Reports to process 0 and returns its answer; tries until somebody is there."""
    line = json.dumps({"hello": _PROTOCOL, **asdict(own_info)}).encode() + b"\n"
    deadline, reason = time.monotonic() + timeout_seconds, "no answer"
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection(
                (host, port), timeout=max(0.1, min(5.0, remaining))
            ) as connection:
                connection.settimeout(timeout_seconds + _REPLY_MARGIN_SECONDS)
                connection.sendall(line)
                with connection.makefile("rb") as stream:
                    received = stream.readline(_MAX_LINE_BYTES)
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
        else:
            reply = _parse_message(received)
            if reply is not None:
                return str(reply.get("problem", ""))
            reason = "it was closed" if not received else "something else listens there"
        time.sleep(min(0.2, max(0.0, deadline - time.monotonic())))
    return (
        f"process {own_info.process_id} of {own_info.num_processes} did not find process 0 at "
        f"{host}:{port} within {timeout_seconds:g} s ({reason}); is process 0 running, and "
        f"BERT_JAX_COORDINATOR its address on every host? ({TIMEOUT_VARIABLE} waits longer)"
    )


def _listen(host: str, port: int) -> socket.socket:
    """On this machine alone where processes meet on it, else on all of its addresses."""
    if host == "localhost" or host.startswith("127."):
        return socket.create_server(("127.0.0.1" if host == "localhost" else host, port))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _parse_info(line: bytes) -> ProcessInfo | None:
    data = _parse_message(line)
    if data is None:
        return None
    try:
        info = ProcessInfo(**{name: data[name] for name in ProcessInfo.__dataclass_fields__})
        valid = isinstance(info.process_id, int) and isinstance(info.num_processes, int)
        return info if valid and isinstance(info.versions, dict) else None
    except KeyError:
        return None


def _parse_message(line: bytes) -> dict | None:
    try:
        data = json.loads(line)
    except ValueError:
        return None
    return data if isinstance(data, dict) and data.get("hello") == _PROTOCOL else None


def _timeout_from_environment() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        seconds = float(text or DEFAULT_TIMEOUT_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UserError(
            f"{TIMEOUT_VARIABLE}={text!r}: expected a number of seconds, "
            f"as in {TIMEOUT_VARIABLE}=120"
        )
    return seconds
