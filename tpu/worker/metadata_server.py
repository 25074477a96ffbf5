"""Reads the metadata server of a cloud machine, and watches it for a preemption notice."""

import contextlib
import threading
import urllib.error
import urllib.request
from collections.abc import Callable

_TIMEOUT_SECONDS = 5.0
_NOTICE_POLL_SECONDS = 2.0  # the notice comes about 30 seconds before the machine is preempted
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
INTERNAL_IP = "instance/network-interfaces/0/ip"
WORKER_NUMBER = "instance/attributes/agent-worker-number"
PREEMPTED = "instance/preempted"
MAINTENANCE_EVENT = "instance/maintenance-event"


def get(server: str, key: str) -> str | None:
    """Returns a metadata value; None if it does not exist or the server does not respond."""
    request = urllib.request.Request(
        f"{server}/computeMetadata/v1/{key}", headers={"Metadata-Flavor": "Google"}
    )
    with contextlib.suppress(OSError, ValueError):
        with _OPENER.open(request, timeout=_TIMEOUT_SECONDS) as response:
            return response.read().decode("utf-8").strip()
    return None


def http_date(server: str) -> str | None:
    """Returns the Date header of a web server's response; None if it does not respond."""
    request = urllib.request.Request(server, method="HEAD")
    try:
        with _OPENER.open(request, timeout=_TIMEOUT_SECONDS) as response:
            return response.headers.get("Date")
    except urllib.error.HTTPError as error:
        return error.headers.get("Date")
    except (OSError, ValueError):
        return None


class PreemptionWatcher(threading.Thread):
    """Calls `on_notice` once, with the reason, when the machine is about to be preempted.

    Args:
      server: URL of the metadata server.
      on_notice: called in this thread.
    """

    def __init__(
        self,
        server: str,
        on_notice: Callable[[str], None],
        poll_seconds: float = _NOTICE_POLL_SECONDS,
    ):
        super().__init__(name="notice", daemon=True)
        self._server, self._on_notice, self._poll_seconds = server, on_notice, poll_seconds
        self._closed = threading.Event()

    def run(self) -> None:
        """Polls until there is a notice or `close` is called."""
        while not self._closed.is_set():
            reason = preemption_reason(self._server)
            if reason:
                self._on_notice(reason)
                return
            self._closed.wait(self._poll_seconds)

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()


def preemption_reason(server: str) -> str | None:
    """Returns why the machine is about to be terminated; None if it is not, or if unknown."""
    if (get(server, PREEMPTED) or "").upper() == "TRUE":
        return "the machine is preempted"
    event = get(server, MAINTENANCE_EVENT) or ""
    # MIGRATE_ON_HOST_MAINTENANCE does not matter: machines with TPU chips cannot be migrated.
    return f"maintenance: {event}" if event.startswith("TERMINATE") else None
