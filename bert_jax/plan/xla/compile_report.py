"""What a compiled step costs on a slice: memory, and two estimates of its time.

Nothing here was ever run on a TPU: these are estimates, and called so everywhere. Two stand beside
each other, because they err differently.

- By schedule: the compiler's cycles for each operation, as often as its loops run it; for
  attention kernels the bundles that it has scheduled (`kernel_schedule.py`); for random bits and
  what it is silent about, the bytes of their results over the memory's bandwidth.
- By roofline: each operation takes what its FLOPs or its bytes need at the least (XLA's
  `optimal_seconds`), kernels likewise. It counts copies to and from on-chip memory several times,
  which is taken off (`CHARGED`), and the body of a loop once: for unrolled layers and whole batches
  only.

To both are added the collectives, one after another with the rest: their bytes over the links of a
corner chip (`timing.py`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bert_jax.hardware.tpu_slices import Slice
from bert_jax.plan.timing import link_axes
from bert_jax.plan.xla.hlo import read_costs

COPY_OVERCOUNT = {"copy": 4, "slice": 3}
"""How often XLA's `optimal_seconds` counts the bytes of a copy to or from on-chip memory."""
_MAX_ROOFLINE_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class CompiledEstimate:
    """What the compiler says of one phase on one slice. Times are estimates, in seconds of a step.

    Attributes:
      out_of_memory: the compiler's own message, or None if it fits; then the rest counts.
      peak_bytes: on one device.
      schedule, roofline: time of the operations; roofline is None if layers or microbatches are
        a loop, or the step takes too long for it.
      kernels: of `schedule`, in kernels.
      links: of the collectives.
      collectives: kind -> [how many, bytes of their results].
      flops: by formula, of one device, for the share of the peak.
      peak_flops: of one device.
    """

    out_of_memory: str | None
    peak_bytes: int = 0
    schedule_seconds: float = 0.0
    roofline_seconds: float | None = None
    kernel_seconds: float = 0.0
    collective_seconds: float = 0.0
    collectives: dict[str, list[float]] | None = None
    flops_per_device: float = 0.0
    device_peak_flops: float = 1.0

    @property
    def seconds(self) -> dict[str, float]:
        """A whole step by each estimate there is, all costs counted."""
        if self.out_of_memory is not None:
            return {}
        estimates = {"schedule": self.schedule_seconds, "roofline": self.roofline_seconds}
        return {
            name: estimated_seconds + self.collective_seconds
            for name, estimated_seconds in estimates.items()
            if estimated_seconds is not None
        }

    @property
    def mfu(self) -> dict[str, float]:
        """The share of the chips' peak that each estimate comes to."""
        return {
            name: self.flops_per_device / (estimated_seconds * self.device_peak_flops)
            for name, estimated_seconds in self.seconds.items()
        }

    def fits(self, usable_bytes: int) -> bool:
        """Whether it does in so many bytes of a device."""
        return self.out_of_memory is None and self.peak_bytes <= usable_bytes


def estimate_compiled(
    report: Mapping[str, Any],
    tpu_slice: Slice,
    flops: float,
    *,
    attention_kernel_seconds: tuple[float, float] = (0.0, 0.0),
) -> CompiledEstimate:
    """Times from what `aot.facts` tells of a compiled step.

    Args:
      flops: of the model in a step, over all devices.
      kernels: seconds of attention kernels on one device, by schedule and by roofline.

    Raises:
      UserError: a loop of the program has no known trip count.
    """
    if report["out_of_memory"] is not None:
        return CompiledEstimate(out_of_memory=report["out_of_memory"])
    generation, costs = tpu_slice.generation, read_costs(report["text"])
    bandwidth = generation.device_bandwidth
    uncosted_bytes = costs.random_bytes + sum(size for _, size in costs.unknown.values())
    schedule_seconds = (
        costs.cycles / generation.clock_hz
        + uncosted_bytes / bandwidth
        + attention_kernel_seconds[0]
    )
    overcounted_bytes = sum(
        (COPY_OVERCOUNT[kind] - 1) * size for kind, (_, size) in costs.copies.items()
    )
    roofline_seconds = (
        optimal_seconds(report["optimal_seconds"])
        - overcounted_bytes / bandwidth
        + attention_kernel_seconds[1]
    )
    collectives: dict[str, list[float]] = {}
    for (kind, _), row in costs.collectives.items():
        collectives[kind] = [a + b for a, b in zip(collectives.get(kind, [0, 0]), row, strict=True)]
    return CompiledEstimate(
        out_of_memory=None,
        peak_bytes=report["peak_bytes"],
        schedule_seconds=schedule_seconds,
        roofline_seconds=None
        if costs.num_loops or schedule_seconds > _MAX_ROOFLINE_SECONDS
        else roofline_seconds,
        kernel_seconds=attention_kernel_seconds[0],
        collective_seconds=collective_seconds(costs.collectives, tpu_slice),
        collectives=collectives,
        flops_per_device=flops / tpu_slice.devices,
        device_peak_flops=generation.device_flops,
    )


def optimal_seconds(reported_seconds: float) -> float:
    """The `optimal_seconds` of a program's cost analysis, if they are fewer than one.

    Every operation that has no cost subtracts a whole second, so that whole ones say nothing.
    """
    return reported_seconds - math.floor(reported_seconds)


def collective_seconds(
    collectives: Mapping[tuple[str, tuple[int, ...]], list[float]], tpu_slice: Slice
) -> float:
    """All collectives one after another, over the links of a corner chip.

    Args:
      collectives: as `hlo.Costs` has them.

    Devices of one chip exchange for nothing; those that are in groups apart share its links.
    """
    devices_per_chip = tpu_slice.generation.devices_per_chip
    link_bytes = 0.0
    for (kind, group), (_, size) in collectives.items():
        devices = group or tuple(range(tpu_slice.devices))
        chips = len({device // devices_per_chip for device in devices})
        groups_per_chip = devices_per_chip * chips / len(devices)
        link_bytes += (
            groups_per_chip * size * _link_bytes_per_result_byte(kind, chips, len(devices))
        )
    return link_bytes / (link_axes(tpu_slice) * tpu_slice.generation.link_bytes_per_second)


def _link_bytes_per_result_byte(kind: str, chips: int, devices: int) -> float:
    """Bytes that leave a chip for each of the result, by the least that any way needs."""
    fraction = (chips - 1) / chips
    match kind:
        case "all-reduce":
            return 2 * fraction
        case "reduce-scatter":  # its result is one device's part
            return fraction * devices
        case "collective-permute":
            return float(chips > 1)
        case _:
            return fraction
