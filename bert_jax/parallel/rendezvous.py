"""Checks before JAX starts that all processes of a run are present and have the same versions.

JAX waits for a missing process and then aborts all others with a C++ stack trace, which Python
cannot catch. Therefore process 0 listens on the port next to the coordinator's. Each other process
sends one line of JSON, and process 0 sends all of them the same reply: continue, or what is wrong.

Processes do not compare clocks.
"""

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError

TIMEOUT_VARIABLE = "BERT_JAX_RENDEZVOUS_SECONDS"
DEFAULT_TIMEOUT_SECONDS = 60.0
# The task files in `tpu/` treat this exit code as a problem of the hosts, not of the training.
EXIT_RENDEZVOUS_FAILED = 76

_PROTOCOL = "bert_jax rendezvous 2"
_MAX_LINE_BYTES = 1 << 16
_LINE_SECONDS = 2.0  # another program that connects to the port may send nothing
_REPLY_MARGIN_SECONDS = 15.0  # the reply may come this much after the deadline of process 0


class RendezvousError(UserError):
    """Reports that processes are missing or incompatible; all processes get the same message."""

    exit_code = EXIT_RENDEZVOUS_FAILED


def wait_for_all_processes(
    coordinator: str, process_id: int, num_processes: int, settings: dict[str, Any]
) -> None:
    """Waits until all processes of a run are present, for `timeout_seconds` at most.

    Args:
      coordinator: HOST:PORT of JAX's coordinator; the next port is used here.
      settings: what must be the same in all processes, such as `package_versions`.

    Raises:
      RendezvousError: on every process, with the same message: which processes are missing, which
        process id occurs twice, or which settings differ.
    """
    host, port = rendezvous_address(coordinator)
    own = {"hello": _PROTOCOL, "id": process_id, "count": num_processes}
    own |= {"place": f"pid {os.getpid()} on {socket.gethostname()}", "settings": settings}
    exchange = _collect_reports if process_id == 0 else _report_to_process_0
    if problem := exchange(own, host, port, timeout_seconds()):
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
    # The coordinator's own port cannot be used, because JAX's service will listen there.
    return host.strip("[]"), int(port) + (1 if int(port) < 65535 else -1)


def package_versions() -> dict[str, str]:
    """Returns the versions of JAX, and a hash of the code, because a host may have older code."""
    package, code = Path(__file__).parents[1], hashlib.sha256()
    # Versions alone are not enough: a host with older code of the same version would compile
    # another program and hang in the first collective.
    for file in sorted(package.rglob("*.py")):
        code.update(f"{file.relative_to(package)}\n".encode() + file.read_bytes())
    versions = {name: metadata.version(name) for name in ("jax", "jaxlib")}
    return {**versions, "code of bert_jax": code.hexdigest()[:8]}


def format_processes(process_ids: Sequence[int]) -> str:
    """Formats process ids as "process 3" or "processes 1, 3"."""
    noun = "process" if len(process_ids) == 1 else "processes"
    return f"{noun} {', '.join(map(str, process_ids))}"


def timeout_seconds() -> float:
    """Returns how long processes wait for each other: BERT_JAX_RENDEZVOUS_SECONDS, or 60."""
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


def _collect_reports(own: dict[str, Any], host: str, port: int, seconds: float) -> str:
    """Waits on process 0 for all others, replies to them, and returns the problem or ""."""
    deadline, reports, problem = time.monotonic() + seconds, {0: own}, ""
    try:
        listener = _listen(host, port)
    except OSError as error:
        raise RendezvousError(
            f"process 0 cannot listen on port {port} (next to the coordinator's) of "
            f"{socket.gethostname()}: {error.strerror or error}; stop the run that uses it, or "
            "choose another port for BERT_JAX_COORDINATOR"
        ) from None
    with contextlib.ExitStack() as stack, listener:
        connections: list[socket.socket] = []
        while len(reports) < own["count"] and not problem:
            listener.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connection = stack.enter_context(listener.accept()[0])
            except TimeoutError:
                break
            connection.settimeout(_LINE_SECONDS)
            if report := _read_message(connection):
                connections.append(connection)
                problem = _conflict(report, reports)
                reports.setdefault(report["id"], report)
        if missing := [] if problem else sorted(set(range(own["count"])) - set(reports)):
            present = ", ".join(f"{n} ({reports[n]['place']})" for n in sorted(reports))
            problem = (
                f"{format_processes(missing)} of {own['count']} did not report to process 0 at "
                f"{host}:{port} within {seconds:g} s; present: {present}; start the same command "
                "on every host, or look at the logs of the missing ones "
                f"({TIMEOUT_VARIABLE} sets a longer timeout)"
            )
        reply = json.dumps({"hello": _PROTOCOL, "problem": problem}).encode() + b"\n"
        for connection in connections:
            with contextlib.suppress(OSError):  # it has ended; JAX will report it missing
                connection.sendall(reply)
    return problem


def _conflict(report: dict[str, Any], reports: dict[int, dict[str, Any]]) -> str:
    """Returns how the report of a process contradicts the reports before it, or ""."""
    own, process = reports[0], f"process {report['id']} ({report['place']})"
    if report["count"] != own["count"]:
        return (
            f"{process} expects {report['count']} processes, process 0 ({own['place']}) expects "
            f"{own['count']}; set BERT_JAX_NUM_PROCESSES to the same number everywhere"
        )
    if (first := reports.get(report["id"])) is not None:
        return (
            f"two processes have the id {report['id']}: {first['place']} and {report['place']}; "
            "set a different BERT_JAX_PROCESS_ID for each"
        )
    for name, value in own["settings"].items():
        if (other := report["settings"].get(name)) != value:
            return (
                f"{name} differs: {value} on process 0 ({own['place']}), {other} on {process}; "
                "make it the same on every host"
            )
    return ""


def _report_to_process_0(own: dict[str, Any], host: str, port: int, seconds: float) -> str:
    """Reports to process 0, retrying until the timeout, and returns the problem or ""."""
    deadline, reason = time.monotonic() + seconds, "no answer"
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=remaining) as connection:
                connection.sendall(json.dumps(own).encode() + b"\n")
                # Process 0 replies to all at the end, which may be at its own deadline.
                connection.settimeout(seconds + _REPLY_MARGIN_SECONDS)
                if reply := _read_message(connection):
                    return reply["problem"]
            reason = "another program listens there, or process 0 has ended"
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(min(0.2, max(0.0, deadline - time.monotonic())))
    return (
        f"process {own['id']} of {own['count']} could not reach process 0 at {host}:{port} within "
        f"{seconds:g} s ({reason}); check that process 0 is running and that BERT_JAX_COORDINATOR "
        f"is its address on every host ({TIMEOUT_VARIABLE} sets a longer timeout)"
    )


def _listen(host: str, port: int) -> socket.socket:
    """Listens on the loopback address if `host` is this machine, else on all addresses."""
    if host == "localhost" or host.startswith("127."):
        return socket.create_server(("127.0.0.1" if host == "localhost" else host, port))
    # Hosts of a cluster may resolve the coordinator's name to an IPv4 or an IPv6 address.
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _read_message(connection: socket.socket) -> dict[str, Any] | None:
    """Reads a line of JSON; None if another program is at the other end."""
    try:
        message = json.loads(connection.makefile("rb").readline(_MAX_LINE_BYTES))
    except (OSError, ValueError):
        return None
    is_expected = isinstance(message, dict) and message.get("hello") == _PROTOCOL
    return message if is_expected else None
