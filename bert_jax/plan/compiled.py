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

from bert_jax.plan.hlo import read_costs
from bert_jax.plan.slices import Slice
from bert_jax.plan.timing import link_axes

CHARGED = {"copy": 4, "slice": 3}
"""How often XLA's `optimal_seconds` counts the bytes of a copy to or from on-chip memory."""
_LONGEST_ROOFLINE = 0.5


@dataclass(frozen=True, kw_only=True)
class Compiled:
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
    schedule: float = 0.0
    roofline: float | None = None
    kernels: float = 0.0
    links: float = 0.0
    collectives: dict[str, list[float]] | None = None
    flops: float = 0.0
    peak_flops: float = 1.0

    @property
    def seconds(self) -> dict[str, float]:
        """A whole step by each estimate there is, all costs counted."""
        if self.out_of_memory is not None:
            return {}
        both = {"schedule": self.schedule, "roofline": self.roofline}
        return {name: time + self.links for name, time in both.items() if time is not None}

    @property
    def mfu(self) -> dict[str, float]:
        """The share of the chips' peak that each estimate comes to."""
        return {name: self.flops / (time * self.peak_flops) for name, time in self.seconds.items()}

    def fits(self, room: int) -> bool:
        """Whether it does in so many bytes of a device."""
        return self.out_of_memory is None and self.peak_bytes <= room


def estimate(
    facts: Mapping[str, Any],
    where: Slice,
    flops: float,
    *,
    kernels: tuple[float, float] = (0.0, 0.0),
) -> Compiled:
    """Times from what `aot.facts` tells of a compiled step.

    Args:
      flops: of the model in a step, over all devices.
      kernels: seconds of attention kernels on one device, by schedule and by roofline.

    Raises:
      UserError: a loop of the program has no known trip count.
    """
    if facts["out_of_memory"] is not None:
        return Compiled(out_of_memory=facts["out_of_memory"])
    generation, costs = where.generation, read_costs(facts["text"])
    bandwidth = generation.device_bandwidth
    silent = costs.random_bytes + sum(size for _, size in costs.unknown.values())
    schedule = costs.cycles / generation.clock_hz + silent / bandwidth + kernels[0]
    surplus = sum((CHARGED[kind] - 1) * size for kind, (_, size) in costs.copies.items())
    roofline = optimal_seconds(facts["optimal_seconds"]) - surplus / bandwidth + kernels[1]
    collectives: dict[str, list[float]] = {}
    for (kind, _), row in costs.collectives.items():
        collectives[kind] = [a + b for a, b in zip(collectives.get(kind, [0, 0]), row, strict=True)]
    return Compiled(
        out_of_memory=None,
        peak_bytes=facts["peak_bytes"],
        schedule=schedule,
        roofline=None if costs.loops or schedule > _LONGEST_ROOFLINE else roofline,
        kernels=kernels[0],
        links=link_seconds(costs.collectives, where),
        collectives=collectives,
        flops=flops / where.devices,
        peak_flops=generation.device_flops,
    )


def optimal_seconds(analysed: float) -> float:
    """The `optimal_seconds` of a program's cost analysis, if they are fewer than one.

    Every operation that has no cost subtracts a whole second, so that whole ones say nothing.
    """
    return analysed - math.floor(analysed)


def link_seconds(
    collectives: Mapping[tuple[str, tuple[int, ...]], list[float]], where: Slice
) -> float:
    """All collectives one after another, over the links of a corner chip.

    Args:
      collectives: as `hlo.Costs` has them.

    Devices of one chip exchange for nothing; those that are in groups apart share its links.
    """
    of_chip = where.generation.devices_per_chip
    crossing = 0.0
    for (kind, group), (_, size) in collectives.items():
        devices = group or tuple(range(where.devices))
        chips = len({device // of_chip for device in devices})
        groups = of_chip * chips / len(devices)
        crossing += groups * size * _crossing(kind, chips, len(devices))
    return crossing / (link_axes(where) * where.generation.link_bytes_per_second)


def _crossing(kind: str, chips: int, devices: int) -> float:
    """Bytes that leave a chip for each of the result, by the least that any way needs."""
    share = (chips - 1) / chips
    match kind:
        case "all-reduce":
            return 2 * share
        case "reduce-scatter":  # its result is one device's part
            return share * devices
        case "collective-permute":
            return float(chips > 1)
        case _:
            return share
