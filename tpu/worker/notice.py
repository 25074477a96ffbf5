"""Watches the metadata server for the notice that this machine will be taken away."""

import threading
from collections.abc import Callable

from tpu.worker import metadata

_EVERY = 2.0  # seconds; the notice comes some 30 seconds ahead


class Notice(threading.Thread):
    """Calls `act` once, with the reason, when the machine is preempted or terminated for repair.

    Args:
      server: the metadata server.
      act: called in this thread.
      every: seconds from one look to the next.
    """

    def __init__(self, server: str, act: Callable[[str], None], every: float = _EVERY):
        super().__init__(name="notice", daemon=True)
        self._server, self._act, self._every = server, act, every
        self._over = threading.Event()

    def run(self) -> None:
        """Looks until there is a notice, or `close`."""
        while not self._over.is_set():
            reason = notice(self._server)
            if reason:
                self._act(reason)
                return
            self._over.wait(self._every)

    def close(self) -> None:
        """Looks no more."""
        self._over.set()


def notice(server: str) -> str | None:
    """Why the machine is about to go; None if it is not, or if nobody can say."""
    if (metadata.get(server, metadata.PREEMPTED) or "").upper() == "TRUE":
        return "the machine is preempted"
    event = metadata.get(server, metadata.MAINTENANCE) or ""
    # A machine with chips cannot be moved while it runs (MIGRATE_ON_HOST_MAINTENANCE).
    return f"maintenance: {event}" if event.startswith("TERMINATE") else None
