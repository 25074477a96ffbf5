"""Tests the rendezvous of processes before JAX starts; threads simulate the processes."""

import ast
import re
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import bert_jax
from bert_jax.apps.simulate.attempt import free_port
from bert_jax.errors import UserError
from bert_jax.parallel import rendezvous
from bert_jax.parallel.rendezvous import RendezvousError, wait_for_all_processes

VERSIONS = {"bert_jax": "0.1", "jax": "0.10.2"}
Report = tuple[int, int, dict[str, Any]]


def report(process: int, count: int = 3, **changes: Any) -> Report:
    return process, count, {**VERSIONS, **changes}


@pytest.fixture
def come(monkeypatch):
    """Returns a function that returns the error message of each process, or None."""

    def start(
        *reports: Report, seconds: float = 10.0, coordinator: str | None = None
    ) -> list[str | None]:
        monkeypatch.setenv("BERT_JAX_RENDEZVOUS_SECONDS", str(seconds))
        coordinator_address = coordinator or f"127.0.0.1:{free_port()}"
        ends: list[str | None] = ["it hangs"] * len(reports)

        def one(place: int) -> None:
            try:
                wait_for_all_processes(coordinator_address, *reports[place])
                ends[place] = None
            except RendezvousError as error:
                assert error.exit_code == 76
                ends[place] = str(error)

        threads = [
            threading.Thread(target=one, args=(i,), daemon=True) for i in range(len(reports))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        return ends

    return start


def test_all_processes_are_present(come):
    assert come(report(2), report(0), report(1)) == [None] * 3
    assert come(report(0, 1)) == [None]


def test_missing_process_is_named_by_all_others(come):
    coordinator_address = f"127.0.0.1:{free_port()}"
    ends = come(report(0, 4), report(2, 4), seconds=1.5, coordinator=coordinator_address)
    assert len(set(ends)) == 1 and ends[0]
    host, port = rendezvous.rendezvous_address(coordinator_address)
    assert f"processes 1, 3 of 4 did not report to process 0 at {host}:{port}" in ends[0]
    assert "within 1.5 s; present: 0 (pid" in ends[0]


def test_process_0_is_missing(come):
    coordinator_address = f"127.0.0.1:{free_port()}"
    ends = come(report(1), report(2), seconds=0.5, coordinator=coordinator_address)
    port = rendezvous.rendezvous_address(coordinator_address)[1]
    assert all(
        e and f"could not reach process 0 at 127.0.0.1:{port} within 0.5 s" in e for e in ends
    )
    assert ends[0] and "Connection refused" in ends[0] and "BERT_JAX_COORDINATOR" in ends[0]


def test_unresolvable_address_is_reported(come):
    (end,) = come(report(1), seconds=0.3, coordinator="no-such-host.invalid:8476")
    assert end and "no-such-host.invalid:8477" in end


def test_different_version_on_one_host_is_reported(come):
    ends = come(report(0), report(1, jax="0.9.0"), report(2), seconds=5.0)
    assert ends[0] and ends[1] == ends[0]
    assert re.match(
        r"jax differs: 0.10.2 on process 0 \(pid \d+ on .*\), 0.9.0 on process 1", ends[0]
    )
    assert "make it the same on every host" in ends[0]


def test_two_processes_with_the_same_index(come):
    ends = come(report(0), report(1), report(1))
    assert ends[0] and ends == [ends[0]] * 3
    assert "two processes have the id 1: pid" in ends[0]
    assert "BERT_JAX_PROCESS_ID" in ends[0]


def test_two_processes_with_index_0_on_one_host(come):
    coordinator_address = f"127.0.0.1:{free_port()}"
    ends = come(report(0, 2), report(0, 2), seconds=1.0, coordinator=coordinator_address)
    busy, waited = sorted(ends, key=lambda end: "did not report" in (end or ""))
    port = rendezvous.rendezvous_address(coordinator_address)[1]
    assert busy and f"process 0 cannot listen on port {port}" in busy
    assert "stop the run that uses it" in busy
    assert waited and "process 1 of 2 did not report" in waited


def test_different_number_of_processes_is_reported(come):
    ends = come(report(0), report(1, count=5))
    assert ends[0] and ends == [ends[0]] * 2
    assert "process 1 (pid" in ends[0] and "expects 5 processes" in ends[0]


def test_late_process_is_waited_for(come):
    coordinator_address = f"127.0.0.1:{free_port()}"
    ends: list[list[str | None]] = []
    early = threading.Thread(
        target=lambda: ends.append(come(report(1), report(2), coordinator=coordinator_address))
    )
    early.start()
    time.sleep(0.5)
    assert come(report(0), coordinator=coordinator_address) == [None]
    early.join(timeout=30)
    assert ends == [[None, None]]


@pytest.mark.parametrize(
    "message", [b"GET / HTTP/1.1\r\n\r\n", b"{", b"[]\n", b"\xff" * 70000, b""]
)
def test_other_connections_to_the_port_are_ignored(message, come):
    coordinator_address = f"127.0.0.1:{free_port()}"
    links = []

    def stranger() -> None:
        for _ in range(50):
            try:
                links.append(
                    socket.create_connection(rendezvous.rendezvous_address(coordinator_address))
                )
                links[-1].sendall(message)
                return
            except OSError:
                time.sleep(0.02)

    thread = threading.Thread(target=stranger)
    thread.start()
    ends: list[list[str | None]] = []
    first = threading.Thread(
        target=lambda: ends.append(come(report(0, 2), coordinator=coordinator_address))
    )
    first.start()
    thread.join()
    assert come(report(1, 2), coordinator=coordinator_address) == [None]
    first.join(timeout=30)
    assert ends == [[None]]
    for link in links:
        link.close()


def test_other_server_at_the_address_is_reported(come):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            link, _ = server.accept()
            with link:
                link.recv(1 << 16)
                link.sendall(b"HTTP/1.1 400 Bad Request\r\n")

        threading.Thread(target=answer, daemon=True).start()
        (end,) = come(report(1), seconds=0.2, coordinator=f"127.0.0.1:{port - 1}")
    assert end and "another program listens there" in end


@pytest.mark.parametrize(
    ("coordinator", "meeting"),
    [
        ("10.0.0.2:8476", ("10.0.0.2", 8477)),
        ("[fd00::1]:80", ("fd00::1", 81)),
        ("host:65535", ("host", 65534)),
    ],
)
def test_rendezvous_address_of_a_coordinator(coordinator, meeting):
    assert rendezvous.rendezvous_address(coordinator) == meeting


@pytest.mark.parametrize("coordinator", ["host", ":80", "host:port", "host:0", "host:70000"])
def test_invalid_coordinator_address_is_rejected(coordinator):
    with pytest.raises(UserError, match="expected HOST:PORT"):
        rendezvous.rendezvous_address(coordinator)


@pytest.mark.parametrize("text", ["soon", "-1", "0", "inf", "nan"])
def test_invalid_timeout_is_rejected(monkeypatch, text):
    monkeypatch.setenv("BERT_JAX_RENDEZVOUS_SECONDS", text)
    with pytest.raises(UserError, match="BERT_JAX_RENDEZVOUS_SECONDS="):
        wait_for_all_processes("127.0.0.1:1", *report(0))


def test_versions_include_a_hash_of_the_code():
    assert {"code of bert_jax", "jax", "jaxlib"} <= rendezvous.package_versions().keys()


def test_rendezvous_does_not_depend_on_clocks():
    """Tests that messages contain no time, and that no process reads the time of day."""
    package = Path(bert_jax.__file__).parent
    files = [package / "train" / f"{name}.py" for name in ("watchdog", "preemption")]
    files += [*package.glob("parallel/*.py"), *package.glob("apps/simulate/*.py")]
    used = {
        ast.unparse(node)
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("time.", "datetime."))
    }
    assert used <= {"time.monotonic", "time.sleep"}
