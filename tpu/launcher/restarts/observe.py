"""Reads the current state of a run: its slices in all zones and the objects in its folder."""

import json
from collections.abc import Sequence
from typing import Any

from bert_jax.errors import UserError
from tpu.launcher.cloud.backend import LiveSlice
from tpu.launcher.cloud.gcloud import check_output
from tpu.launcher.restarts.loop_types import HostObservation
from tpu.launcher.runs.run_context import STOP_MARKER, RunContext


def list_slices(run: RunContext, zones: Sequence[str]) -> tuple[LiveSlice, ...]:
    """Returns every slice of the run in these zones.

    Raises:
      GcloudError: a zone cannot be listed.
    """
    found: list[LiveSlice] = []
    for zone in zones:
        listings = {
            resource: _parse_json_list(check_output(run.runner, argv), argv)
            for resource, argv in run.backend.list_commands(zone).items()
        }
        found += run.backend.parse_slices(zone, listings)
    return tuple(found)


def list_markers(run: RunContext) -> frozenset[str]:
    """Returns the names of the objects in the run's folder: DONE.json, STOP, manifest.json ..."""
    urls = run.bucket.list_names(f"{run.folder.url}/")
    return frozenset(name.removeprefix(f"{run.folder.url}/") for name in urls)


def is_stop_requested(markers: frozenset[str]) -> bool:
    """Returns whether someone has asked the run to stop."""
    return STOP_MARKER in markers


def is_keep_slice_requested(run: RunContext) -> bool:
    """Returns whether the request to stop also asks to keep the slice.

    Raises:
      GcloudError: the bucket cannot be read.
    """
    try:
        stop_request = json.loads(run.bucket.read(run.stop_url) or "{}")
    except ValueError:
        return False
    if not isinstance(stop_request, dict):
        return False
    # `keep` is what launchers of layout version 1 write.
    return stop_request.get("keep_slice", stop_request.get("keep")) is True


def latest_attempt(run: RunContext) -> int:
    """Returns the highest attempt number that has a folder in the bucket; -1 if there is none.

    Raises:
      GcloudError: the bucket cannot be listed.
    """
    attempts_url = f"{run.folder.attempts}/"
    names = (
        name.removeprefix(attempts_url).strip("/") for name in run.bucket.list_names(attempts_url)
    )
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def read_reports(run: RunContext, attempt: int) -> list[dict[str, Any]]:
    """Returns the preflight reports, heartbeats and exit reports of an attempt, as JSON objects."""
    if attempt < 0:
        return []
    return run.bucket.read_all(f"{run.folder.attempt(attempt).url}/host-*.json")


def summarize_hosts(host_reports: Sequence[dict[str, Any]]) -> tuple[HostObservation, ...]:
    """Summarizes heartbeats and exit reports by host; the keys tell the kinds of report apart."""
    heartbeats = {each["host"]: each for each in host_reports if "phase" in each}
    exit_reports = {each["host"]: each for each in host_reports if "meaning" in each}
    return tuple(
        HostObservation(
            host=host,
            heartbeat=str(heartbeats.get(host, {}).get("time", "")),
            step=heartbeats.get(host, {}).get("step"),
            exit_code=exit_reports.get(host, {}).get("code"),
        )
        for host in sorted(heartbeats | exit_reports)
    )


def _parse_json_list(text: str, argv: Sequence[str]) -> list[dict[str, Any]]:
    try:
        items = json.loads(text or "[]")
    except ValueError as error:
        raise UserError(f"`{' '.join(argv[:5])} ...` did not print JSON: {error}") from None
    return items if isinstance(items, list) else []
