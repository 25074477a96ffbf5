"""Checks before JAX starts that all processes of a run are present and compatible.

JAX itself waits five minutes for a missing process and then aborts all others with a C++ stack
trace. Here process 0 listens for one minute on the port next to the coordinator's. Each other
process sends one line of JSON, and process 0 sends all of them the same reply: continue, or what is
wrong.

Processes do not compare clocks. Imports the standard library only.
"""

import json
import os
import selectors
import socket
import time
from dataclasses import asdict
from typing import Any

from bert_jax.errors import UserError
from bert_jax.parallel.process_info import ProcessInfo, format_processes, mismatches

TIMEOUT_VARIABLE = "BERT_JAX_RENDEZVOUS_SECONDS"
DEFAULT_TIMEOUT_SECONDS = 60.0
# The launcher in `tpu/` treats this exit code as a problem of the hosts, not of the training.
EXIT_RENDEZVOUS_FAILED = 76

_PROTOCOL = "bert_jax rendezvous 1"
_MAX_LINE_BYTES = 1 << 16
_REPLY_MARGIN_SECONDS = 15.0  # the reply may come this much after the deadline of process 0


class RendezvousError(UserError):
    """Reports that processes are missing or incompatible; all processes get the same message."""

    exit_code = EXIT_RENDEZVOUS_FAILED


def wait_for_all_processes(
    coordinator: str, own_info: ProcessInfo, *, timeout_seconds: float | None = None
) -> None:
    """Waits until all `own_info.num_processes` processes are present and compatible.

    Args:
      coordinator: HOST:PORT of JAX's coordinator; the next port is used here.
      timeout_seconds: None: the environment variable BERT_JAX_RENDEZVOUS_SECONDS, or 60.

    Raises:
      RendezvousError: on every process, with the same message: which processes are missing, which
        process id occurs twice, or which versions differ.
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
    """Returns host and port of the rendezvous: the coordinator's host and the next port.

    Raises:
      UserError: `coordinator` is not HOST:PORT.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(
            f"coordinator {coordinator!r}: expected HOST:PORT, for example 10.0.0.2:8476"
        )
    return host.strip("[]"), int(port) + (1 if int(port) < 65535 else -1)


class _RendezvousServer:
    """Receives one report from each process, then sends all of them the same reply."""

    def __init__(self, own_info: ProcessInfo, host: str, port: int):
        self._own_info, self._address = own_info, f"{host}:{port}"
        self._infos = {own_info.process_id: own_info}
        self._buffers: dict[socket.socket, bytes] = {}  # received bytes of a line
        self._info_by_connection: dict[socket.socket, ProcessInfo] = {}
        self._problem = ""
        try:
            self._listener = _listen(host, port)
        except OSError as error:
            raise RendezvousError(
                f"process 0 cannot listen on port {port} (next to the coordinator's) of "
                f"{own_info.host}: {error.strerror or error}; stop the run that uses it, or choose "
                "another port for BERT_JAX_COORDINATOR"
            ) from None

    def run(self, timeout_seconds: float) -> str:
        """Waits for all processes, replies to them, and returns the problem or ""."""
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
                    continue  # the process has ended; JAX will report it missing
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
        if info is None or source in self._info_by_connection:  # closed, or not bert_jax
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
                f"process {info.process_id} ({info.location}) expects {info.num_processes} "
                f"processes, process 0 ({self._own_info.location}) expects "
                f"{self._own_info.num_processes}; set BERT_JAX_NUM_PROCESSES to the same number "
                "everywhere"
            )
        elif info.process_id in self._infos:
            self._problem = (
                f"two processes have the id {info.process_id}: "
                f"{self._infos[info.process_id].location} and {info.location}; set a different "
                "BERT_JAX_PROCESS_ID for each"
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
                f"{self._address} within {timeout_seconds:g} s; present: {present}; start the same "
                "command on every host, or look at the logs of the missing ones "
                f"({TIMEOUT_VARIABLE} sets a longer timeout)"
            )
        return "; ".join(lines + mismatches(self._infos))


def _report_to_process_0(
    own_info: ProcessInfo, host: str, port: int, timeout_seconds: float
) -> str:
    """Reports to process 0, retrying until the timeout, and returns the problem or ""."""
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
            reason = "connection closed" if not received else "another program listens there"
        time.sleep(min(0.2, max(0.0, deadline - time.monotonic())))
    return (
        f"process {own_info.process_id} of {own_info.num_processes} could not reach process 0 at "
        f"{host}:{port} within {timeout_seconds:g} s ({reason}); check that process 0 is running "
        "and that BERT_JAX_COORDINATOR is its address on every host "
        f"({TIMEOUT_VARIABLE} sets a longer timeout)"
    )


def _listen(host: str, port: int) -> socket.socket:
    """Listens on the loopback address if `host` is this machine, else on all addresses."""
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
        fields = {name: data[name] for name in ProcessInfo.__dataclass_fields__}
    except KeyError:
        return None
    types = {"process_id": int, "num_processes": int, "versions": dict}
    if not all(isinstance(fields[name], expected) for name, expected in types.items()):
        return None
    return ProcessInfo(**fields)


def _parse_message(line: bytes) -> dict[str, Any] | None:
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
