"""What the other hosts of a slice have reported: how they ended, and whether they are alive."""

import time
from collections.abc import Callable, Iterable

from tpu import strict_json
from tpu.protocol import EXIT_ABORTED, EXIT_DONE, EXIT_SAVED, Exit, Order, State
from tpu.worker import storage

_SILENT_BEATS = 10


def exits(order: Order) -> dict[int, Exit]:
    """Host -> how it has ended, of those that have.

    Raises:
      StorageError: the bucket cannot be read.
    """
    there = set(storage.names(order.folder.url))
    found = {}
    for host in range(order.slice.hosts):
        url = order.folder.exit(host)
        text = storage.read(url) if url.rsplit("/", 1)[1] in there else None
        if text is not None:
            found[host] = strict_json.from_text(Exit, text, url)
    return found


def stop_with_them(order: Order, others: Iterable[int], act: Callable[[str], None]) -> None:
    """Calls `act` when another host was stopped: what takes one host away takes the slice.

    Raises:
      StorageError: the bucket cannot be read.
    """
    ended = exits(order)
    for host in others:
        if host in ended and ended[host].code == EXIT_SAVED:
            act(f"host {host} was asked to stop")
            return


class Waiting:
    """Waits for other hosts, as long as they report.

    Args:
      every: seconds from one report of a host to the next.
      stopping: whether to wait no more.
      say: told why the waiting ended badly.
    """

    def __init__(
        self,
        order: Order,
        every: float,
        stopping: Callable[[], bool],
        say: Callable[[str], None],
    ):
        self._order, self._every, self._stopping, self._say = order, every, stopping, say
        self._last: dict[int, tuple[str | None, float]] = {}

    def for_lanes(self, others: Iterable[int]) -> int:
        """Until each of the others has run its lanes, and their cells are in the bucket.

        Returns:
          0; or the code with which one has ended before, 75 when stopping, 134 for a silent one.

        Raises:
          StorageError: the bucket cannot be read.
        """
        waiting = set(others)
        while waiting:
            for host, ended in exits(self._order).items():
                if host in waiting:
                    self._say(f"host {host} has ended before its lanes: {ended.meaning}")
                    return ended.code
            code = self._look(waiting)
            if code is not None:
                return code
            waiting = {host for host in waiting if self._phase(host) != "collecting"}
        return EXIT_DONE

    def for_table(self) -> int:
        """Until host 0 has written the table and ended; its code, or one as of `for_lanes`.

        Raises:
          StorageError: the bucket cannot be read.
        """
        while True:
            ended = exits(self._order).get(0)
            if ended is not None:
                return ended.code
            code = self._look({0})
            if code is not None:
                return code

    def _look(self, waiting: Iterable[int]) -> int | None:
        for host in sorted(waiting):
            text = storage.read(self._order.folder.state(host))
            if host not in self._last or text != self._last[host][0]:
                self._last[host] = (text, time.monotonic())
            elif time.monotonic() - self._last[host][1] > _SILENT_BEATS * self._every:
                self._say(f"host {host} ({self._order.hosts[host]}) reports no more")
                return EXIT_ABORTED
        time.sleep(min(5.0, self._every))
        return EXIT_SAVED if self._stopping() else None

    def _phase(self, host: int) -> str | None:
        text = self._last[host][0]
        where = self._order.folder.state(host)
        return None if text is None else strict_json.from_text(State, text, where).phase
