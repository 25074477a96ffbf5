"""Defines what a check is, and runs one on all processes.

A check measures one number, which must not be above its limit: a difference from a reference, a
count of wrong elements, or a ratio. So every result has a measured value next to its tolerance.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.errors import ConfigError, UserError
from bert_jax.parallel.tpu_slices import Slice, all_slices

logger = logging.getLogger(__name__)

Status = Literal["pass", "skipped", "fail"]
STATUSES: tuple[Status, ...] = ("pass", "skipped", "fail")
"""The statuses from the best to the worst."""
Platform = Literal["cpu", "gpu", "tpu"]


class Skipped(Exception):
    """Raised by a check that does not apply to the devices; the message is the reason."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Describes the devices on which checks run, or for a dry run, would run.

    Attributes:
      device_kind: `jax.Device.device_kind`.
      tpu_slice: the row of the table of slices, for `plan`; None for other devices.
    """

    platform: Platform
    device_kind: str
    devices: int
    processes: int
    tpu_slice: Slice | None = None

    @classmethod
    def of_this_machine(cls) -> "Target":
        """Describes the devices that JAX has found, over all processes."""
        devices = jax.devices()
        platform = devices[0].platform
        if platform not in ("cpu", "gpu", "tpu"):
            raise ConfigError(f"JAX runs on {platform!r}; expected a CPU, GPU or TPU")
        kind = devices[0].device_kind
        found = (
            each
            for each in all_slices().values()
            if each.devices == len(devices)
            and kind in (each.generation.device_kind, f"TPU {each.generation.name}")
        )
        return cls(
            platform=platform,
            device_kind=kind,
            devices=len(devices),
            processes=jax.process_count(),
            tpu_slice=next(found, None),
        )

    @classmethod
    def of_slice(cls, tpu_slice: Slice) -> "Target":
        """Describes the devices of a slice, which need not exist."""
        return cls(
            platform="tpu",
            device_kind=tpu_slice.generation.device_kind,
            devices=tpu_slice.devices,
            processes=tpu_slice.hosts,
            tpu_slice=tpu_slice,
        )


@dataclass(frozen=True, kw_only=True)
class Context:
    """Holds what the checks of one call have in common.

    Attributes:
      folder: a folder of this host for corpora and runs; each process has all files.
      checkpoint_dir: a folder that all processes share, possibly gs://; None: `folder`.
      updates: the updates of the short training, an even number.
      shared: results of earlier checks by name, which later checks continue from.
    """

    target: Target
    folder: Path
    checkpoint_dir: str | None = None
    updates: int = 30
    shared: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Holds the value of a check, a sentence about it, and further numbers for the JSON file."""

    value: float
    detail: str = ""
    numbers: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Check:
    """Describes one check.

    Attributes:
      describe: what is compared on a target, as a phrase; raises `Skipped`.
      unit: what the measured value is.
      measure: runs the check; raises `Skipped`.
      limit: the largest value that passes on a target; None if any value passes.
    """

    name: str
    describe: Callable[[Target], str]
    unit: str
    measure: Callable[[Context], Measured]
    limit: Callable[[Target], float | None] = lambda target: 0.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """Holds the result of one check; `value` is None unless it was measured."""

    name: str
    status: Status
    description: str = ""
    unit: str = ""
    value: float | None = None
    limit: float | None = None
    detail: str = ""
    seconds: float = 0.0
    numbers: dict[str, float | None] = field(default_factory=dict)


def run_check(check: Check, context: Context) -> Result:
    """Runs one check, whose status is the worst one of all processes.

    An error of it is a failure, so that the other checks still run.
    """
    start, limit = time.monotonic(), check.limit(context.target)
    result = Result(name=check.name, status="fail", unit=check.unit, limit=limit)
    try:
        result = dataclasses.replace(result, description=check.describe(context.target))
        measured = check.measure(context)
        is_finite = math.isfinite(measured.value)
        is_within = is_finite and (limit is None or measured.value <= limit)
        result = dataclasses.replace(
            result,
            status="pass" if is_within else "fail",
            value=measured.value if is_finite else None,  # JSON has no NaN
            detail=measured.detail,
            numbers=measured.numbers,
        )
    except Skipped as skipped:
        result = dataclasses.replace(result, status="skipped", detail=str(skipped))
    except UserError as error:
        result = dataclasses.replace(result, detail=str(error))
    except Exception as error:
        logger.debug("%s", check.name, exc_info=True)
        result = dataclasses.replace(result, detail=f"{type(error).__name__}: {error}")
    worst = _worst_status(result.status)
    if worst != result.status:
        detail = f"{worst} on another process; here {result.status} {result.detail}"
        result = dataclasses.replace(result, status=worst, detail=detail)
    return dataclasses.replace(result, seconds=time.monotonic() - start)


def _worst_status(status: Status) -> Status:
    """Returns the worst status of a check over all processes."""
    if jax.process_count() == 1:
        return status
    codes = multihost_utils.process_allgather(np.int32(STATUSES.index(status)))
    return STATUSES[int(np.max(codes))]
