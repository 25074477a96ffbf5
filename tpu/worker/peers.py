"""Reads the reports of the other hosts of a slice: how they exited, whether they still report."""

import time
from collections.abc import Callable, Iterable

from tpu import strict_json
from tpu.protocol import EXIT_ABORTED, EXIT_DONE, EXIT_SAVED, ExitReport, Heartbeat, JobSpec
from tpu.worker import storage

_MAX_MISSED_HEARTBEATS = 10


def read_exit_reports(job_spec: JobSpec) -> dict[int, ExitReport]:
    """Returns {host: exit report} of the hosts that have exited.

    Raises:
      StorageError: the bucket cannot be read.
    """
    existing = set(storage.list_names(job_spec.attempt_folder.url))
    found = {}
    for host in range(job_spec.slice.hosts):
        url = job_spec.attempt_folder.exit_report(host)
        text = storage.read(url) if url.rsplit("/", 1)[1] in existing else None
        if text is not None:
            found[host] = strict_json.from_text(ExitReport, text, url)
    return found


def stop_with_peers(
    job_spec: JobSpec, others: Iterable[int], on_stop: Callable[[str], None]
) -> None:
    """Calls `on_stop` when another host was stopped: a preemption affects the whole slice.

    Raises:
      StorageError: the bucket cannot be read.
    """
    ended = read_exit_reports(job_spec)
    for host in others:
        if host in ended and ended[host].code == EXIT_SAVED:
            on_stop(f"host {host} was asked to stop")
            return


class PeerWaiter:
    """Waits for other hosts for as long as they report.

    Args:
      heartbeat_seconds: seconds between two reports of a host.
      should_stop: returns whether to stop waiting.
      log: receives the reason if the wait fails.
    """

    def __init__(
        self,
        job_spec: JobSpec,
        heartbeat_seconds: float,
        should_stop: Callable[[], bool],
        log: Callable[[str], None],
    ):
        self._job_spec, self._heartbeat_seconds = job_spec, heartbeat_seconds
        self._should_stop, self._log = should_stop, log
        self._last_heartbeats: dict[int, tuple[str | None, float]] = {}

    def wait_for_shards(self, others: Iterable[int]) -> int:
        """Waits until the other hosts have run their shards and copied them to the bucket.

        Returns:
          0; the code of a host that has exited before that; 75 when asked to stop; 134 if a host
          has stopped reporting.

        Raises:
          StorageError: the bucket cannot be read.
        """
        waiting = set(others)
        while waiting:
            for host, ended in read_exit_reports(self._job_spec).items():
                if host in waiting:
                    self._log(f"host {host} has exited before its shards: {ended.meaning}")
                    return ended.code
            code = self._poll(waiting)
            if code is not None:
                return code
            waiting = {host for host in waiting if self._phase(host) != "collecting"}
        return EXIT_DONE

    def wait_for_table(self) -> int:
        """Waits until host 0 has written the table; returns the same codes.

        Raises:
          StorageError: the bucket cannot be read.
        """
        while True:
            ended = read_exit_reports(self._job_spec).get(0)
            if ended is not None:
                return ended.code
            code = self._poll({0})
            if code is not None:
                return code

    def _poll(self, waiting: Iterable[int]) -> int | None:
        for host in sorted(waiting):
            text = storage.read(self._job_spec.attempt_folder.heartbeat(host))
            if host not in self._last_heartbeats or text != self._last_heartbeats[host][0]:
                self._last_heartbeats[host] = (text, time.monotonic())
            elif (
                time.monotonic() - self._last_heartbeats[host][1]
                > _MAX_MISSED_HEARTBEATS * self._heartbeat_seconds
            ):
                self._log(f"host {host} ({self._job_spec.host_addresses[host]}) stopped reporting")
                return EXIT_ABORTED
        time.sleep(min(5.0, self._heartbeat_seconds))
        return EXIT_SAVED if self._should_stop() else None

    def _phase(self, host: int) -> str | None:
        text = self._last_heartbeats[host][0]
        url = self._job_spec.attempt_folder.heartbeat(host)
        return None if text is None else strict_json.from_text(Heartbeat, text, url).phase
