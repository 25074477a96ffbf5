"""Waits in the bucket for all hosts before JAX starts, so that a missing host is named.

JAX itself would wait for minutes and then abort without naming the host.
"""

import time
from collections.abc import Callable

from bert_jax.errors import UserError
from tpu import strict_json
from tpu.protocol import Heartbeat, JobSpec, PreflightReport
from tpu.worker import storage

_POLL_SECONDS = 2.0
_LATE_FACTOR = 10
"""How many times the reporting time to wait for a late host: the launcher, whose ssh has not
reached it, keeps trying for minutes."""
_STARTED_PHASES = ("waiting", "training", "saving", "collecting")


class HostsNotReady(UserError):
    """Reports that a host is missing or failed its preflight checks."""


def wait_for_preflights(job_spec: JobSpec, seconds: float) -> None:
    """Waits until every host has reported that its preflight checks passed.

    Raises:
      HostsNotReady: a host has not reported in time, has failed, or has other package versions
        than host 0.
      StorageError: the bucket cannot be read.
    """
    reports: dict[int, PreflightReport] = {}

    def has_reported(host: int) -> bool:
        text = storage.read(job_spec.attempt_folder.preflight_report(host))
        if text is not None:
            reports[host] = strict_json.from_text(
                PreflightReport, text, job_spec.attempt_folder.preflight_report(host)
            )
        return text is not None

    absent = _wait_for_hosts(job_spec, seconds, has_reported)
    if absent:
        host_names = "; ".join(_describe_host(job_spec, host) for host in absent)
        raise HostsNotReady(
            f"no report after {seconds:.0f} s from {host_names}: run preflight on all hosts; if a "
            "host cannot be reached, delete the slice and create it again"
        )
    for host, report in sorted(reports.items()):
        if not report.ok:
            found = "; ".join(map(str, report.problems))
            raise HostsNotReady(f"{_describe_host(job_spec, host)} is not ready: {found}")
    for host, report in sorted(reports.items()):
        for package, version in reports[0].versions.items():
            if report.versions.get(package) != version:
                own_version = report.versions.get(package, "none")
                raise HostsNotReady(
                    f"{_describe_host(job_spec, host)} has {package} {own_version}, host 0 has "
                    f"{version}: all hosts need the same; tpu/tpuctl sync installs it"
                )


def wait_for_units(
    job_spec: JobSpec, seconds: float, should_stop: Callable[[], bool], log: Callable[[str], None]
) -> None:
    """Waits until every host has fetched its data and is ready to start the trainer.

    A host that is still fetching is waited for as long as its heartbeats keep changing.

    Args:
      seconds: time after which hosts that have not started are logged.
      should_stop: returns whether to stop waiting.
      log: receives the names of late hosts.

    Raises:
      HostsNotReady: a host has not started after ten times as long, or has stopped reporting.
      StorageError: the bucket cannot be read.
    """
    last_heartbeats: dict[int, tuple[str, float]] = {}

    def has_started(host: int) -> bool:
        text = storage.read(job_spec.attempt_folder.heartbeat(host))
        if text is None:
            return False
        found = strict_json.from_text(Heartbeat, text, job_spec.attempt_folder.heartbeat(host))
        if text != last_heartbeats.get(host, ("", 0.0))[0]:
            last_heartbeats[host] = (text, time.monotonic())
        return found.phase in _STARTED_PHASES

    def is_alive(host: int) -> bool:
        limit = max(seconds, 60.0)
        return host in last_heartbeats and time.monotonic() - last_heartbeats[host][1] < limit

    def late_message(absent: list[int], after: float) -> str:
        host_names = "; ".join(
            f"{_describe_host(job_spec, host)}{_last_line(job_spec, host)}" for host in absent
        )
        return f"after {after:.0f} s the trainer has not started on {host_names}"

    absent = _wait_for_hosts(job_spec, seconds, has_started, is_alive, should_stop)
    if absent:
        log(f"{late_message(absent, seconds)}; still waiting")
        max_seconds = seconds * _LATE_FACTOR
        absent = _wait_for_hosts(
            job_spec, max_seconds - seconds, has_started, is_alive, should_stop
        )
        if absent:
            raise HostsNotReady(
                f"{late_message(absent, max_seconds)}: start it there, or create the slice again"
            )


def _wait_for_hosts(
    job_spec: JobSpec,
    seconds: float,
    is_ready: Callable[[int], bool],
    is_alive: Callable[[int], bool] = lambda host: False,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[int]:
    """Returns the hosts that are not ready in time; waits longer for those that are alive.

    Returns an empty list when `should_stop` becomes true.
    """
    deadline, absent = time.monotonic() + seconds, list(range(job_spec.slice.hosts))
    while True:
        absent = [host for host in absent if not is_ready(host)]
        late = time.monotonic() > deadline
        silent = [host for host in absent if not is_alive(host)]
        if should_stop():
            return []
        if not absent or (late and silent):
            return silent
        time.sleep(min(_POLL_SECONDS, seconds / 4))


def _describe_host(job_spec: JobSpec, host: int) -> str:
    return f"host {host} ({job_spec.host_addresses[host]})"


def _last_line(job_spec: JobSpec, host: int) -> str:
    text = storage.read(job_spec.attempt_folder.heartbeat(host))
    if text is None:
        return ""
    url = job_spec.attempt_folder.heartbeat(host)
    line = strict_json.from_text(Heartbeat, text, url).last_log_line
    return f", whose last log line is {line!r}" if line else ""
