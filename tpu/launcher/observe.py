"""One look at everything that concerns a run: slices in all its zones, objects in its folder."""

import json
from collections.abc import Sequence
from typing import Any

from bert_jax.errors import UserError
from tpu.launcher.backend import LiveSlice
from tpu.launcher.context import STOP, Run
from tpu.launcher.gcloud import must
from tpu.launcher.states import HostSeen


def slices(run: Run, zones: Sequence[str]) -> tuple[LiveSlice, ...]:
    """Every slice of the run in these zones.

    Raises:
      GcloudError: a zone could not be asked.
    """
    found: list[LiveSlice] = []
    for zone in zones:
        answers = {
            what: _rows(must(run.runner, argv), argv)
            for what, argv in run.backend.questions(zone).items()
        }
        found += run.backend.read(zone, answers)
    return tuple(found)


def marks(run: Run) -> frozenset[str]:
    """What lies in the run's folder: DONE.json, STOP, manifest.json ..."""
    there = run.bucket.names(f"{run.folder.url}/")
    return frozenset(name.removeprefix(f"{run.folder.url}/") for name in there)


def is_stopped(found: frozenset[str]) -> bool:
    """Whether someone asked the run to stop."""
    return STOP in found


def keeps_slice(run: Run) -> bool:
    """Whether who asked the run to stop wants its slice to be left alone.

    Raises:
      GcloudError: the bucket could not be asked.
    """
    try:
        asked = json.loads(run.bucket.read(run.stop_url) or "{}")
    except ValueError:
        return False
    return isinstance(asked, dict) and asked.get("keep") is True


def latest_life(run: Run) -> int:
    """The highest number of a life that has left something in the run's folder; -1: none has.

    Raises:
      GcloudError: the bucket could not be asked.
    """
    lives = f"{run.folder.url}/incarnations/"
    found = (name.removeprefix(lives).strip("/") for name in run.bucket.names(lives))
    return max((int(name) for name in found if name.isdecimal()), default=-1)


def reports(run: Run, incarnation: int) -> list[dict[str, Any]]:
    """Preflights, heartbeats and exits of one life, as they were written."""
    if incarnation < 0:
        return []
    return run.bucket.read_all(f"{run.folder.incarnation(incarnation).url}/host-*.json")


def hosts(found: Sequence[dict[str, Any]]) -> tuple[HostSeen, ...]:
    """Heartbeats and exits by host; they are told apart by their keys."""
    beats = {each["host"]: each for each in found if "phase" in each}
    exits = {each["host"]: each for each in found if "meaning" in each}
    return tuple(
        HostSeen(
            host=host,
            beat=str(beats.get(host, {}).get("time", "")),
            step=beats.get(host, {}).get("step"),
            exit_code=exits.get(host, {}).get("code"),
        )
        for host in sorted(beats | exits)
    )


def _rows(text: str, argv: Sequence[str]) -> list[dict[str, Any]]:
    try:
        rows = json.loads(text or "[]")
    except ValueError as error:
        raise UserError(f"`{' '.join(argv[:5])} ...` did not answer in JSON: {error}") from None
    return rows if isinstance(rows, list) else []
