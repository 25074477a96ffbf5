"""All hosts meet in the bucket before JAX starts, so that one that is missing is named.

JAX itself would wait for minutes, and then abort without a name.
"""

import time
from collections.abc import Callable

from bert_jax.errors import UserError
from tpu import strict_json
from tpu.protocol import Order, Preflight, State
from tpu.worker import storage

_LOOK_EVERY = 2.0  # seconds
_PATIENCE = 10
"""A host whose unit is late is waited for so many times as long as it takes to be called late: the
launcher, whose ssh did not reach it, tries again for minutes."""
_PRESENT = ("waiting", "training", "saving", "collecting")


class NotReady(UserError):
    """A host is absent, or not fit."""


def await_reports(order: Order, seconds: float) -> None:
    """Waits until every host has reported that it is fit.

    Raises:
      NotReady: a host has not reported in time, is not fit, or has other versions than host 0.
      StorageError: the bucket cannot be read.
    """
    reports: dict[int, Preflight] = {}

    def look(host: int) -> bool:
        text = storage.read(order.folder.preflight(host))
        if text is not None:
            reports[host] = strict_json.from_text(Preflight, text, order.folder.preflight(host))
        return text is not None

    absent = _await(order, seconds, look)
    if absent:
        told = "; ".join(f"{_named(order, host)}" for host in absent)
        raise NotReady(
            f"no report after {seconds:.0f} s from {told}: run preflight on all hosts; if it "
            "cannot be reached, make the slice anew"
        )
    for host, report in sorted(reports.items()):
        if not report.ok:
            found = "; ".join(map(str, report.problems))
            raise NotReady(f"{_named(order, host)} is not fit: {found}")
    for host, report in sorted(reports.items()):
        for package, version in reports[0].versions.items():
            if report.versions.get(package) != version:
                raise NotReady(
                    f"{_named(order, host)} has {package} {report.versions.get(package, 'none')}, "
                    f"host 0 has {version}: all hosts need the same; tpu/pod sync installs it"
                )


def await_units(
    order: Order, seconds: float, stopping: Callable[[], bool], say: Callable[[str], None]
) -> None:
    """Waits until the unit of every host has fetched what it needs.

    A host that is still fetching is waited for as long as its reports go on changing.

    Args:
      seconds: after which hosts that have not started are named.
      stopping: whether to wait no more.
      say: told their names.

    Raises:
      NotReady: a host has not started ten times as long, or has stopped to report.
      StorageError: the bucket cannot be read.
    """
    last: dict[int, tuple[str, float]] = {}

    def look(host: int) -> bool:
        text = storage.read(order.folder.state(host))
        if text is None:
            return False
        found = strict_json.from_text(State, text, order.folder.state(host))
        if text != last.get(host, ("", 0.0))[0]:
            last[host] = (text, time.monotonic())
        return found.phase in _PRESENT

    def alive(host: int) -> bool:
        return host in last and time.monotonic() - last[host][1] < max(seconds, 60.0)

    def late(absent: list[int], after: float) -> str:
        told = "; ".join(f"{_named(order, host)}{_last_line(order, host)}" for host in absent)
        return f"after {after:.0f} s the trainer has not started on {told}"

    absent = _await(order, seconds, look, alive, stopping)
    if absent:
        say(f"{late(absent, seconds)}; goes on waiting")
        longest = seconds * _PATIENCE
        absent = _await(order, longest - seconds, look, alive, stopping)
        if absent:
            raise NotReady(f"{late(absent, longest)}: start it there too, or make the slice anew")


def _await(
    order: Order,
    seconds: float,
    look: Callable[[int], bool],
    alive: Callable[[int], bool] = lambda host: False,
    stopping: Callable[[], bool] = lambda: False,
) -> list[int]:
    """The hosts for which `look` was not true in time; longer for those that are `alive`.

    None when it is `stopping`.
    """
    until, absent = time.monotonic() + seconds, list(range(order.slice.hosts))
    while True:
        absent = [host for host in absent if not look(host)]
        late = time.monotonic() > until
        silent = [host for host in absent if not alive(host)]
        if stopping():
            return []
        if not absent or (late and silent):
            return silent
        time.sleep(min(_LOOK_EVERY, seconds / 4))


def _named(order: Order, host: int) -> str:
    return f"host {host} ({order.hosts[host]})"


def _last_line(order: Order, host: int) -> str:
    text = storage.read(order.folder.state(host))
    if text is None:
        return ""
    line = strict_json.from_text(State, text, order.folder.state(host)).line
    return f", whose last line is {line!r}" if line else ""
