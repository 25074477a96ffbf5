"""Loads the table of TPU slices, `tpu_slices.json`, into dataclasses.

All other modules, and the launcher in `tpu/`, take their facts about TPUs from here. Imports the
standard library only.
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.errors import ConfigError, closest_names

FILE = Path(__file__).with_name("tpu_slices.json")


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Describes one generation of TPU chips; the numbers are for one chip.

    Attributes:
      bf16_flops: peak dense bfloat16 FLOP/s.
      hbm_gib, usable_hbm_gib: memory of a chip, and the part of it that a program can use.
      link_bytes_per_second: bandwidth of one interconnect link in one direction; a chip has two
        links along each of `link_axes` axes.
      ring_length: an axis of a multiple of this many chips is a ring; of three axes, all are rings
        or none is.
      clock_hz: clock of the TensorCore; converts the compiler's cycle estimates into seconds.
      devices_per_chip: number of JAX devices on a chip.
      cores_per_device: number of TensorCores of a JAX device; two share the grid of a kernel.
      chip_config: libtpu's `chip_config_name` that makes a chip one device; None: the default.
      saved_replicated, saved_sharded, saved_ffn: bytes of a layer's activations that XLA saves for
        the backward pass (fixed, numbers of the compute dtype): of [tokens, D] two inputs of norms,
        four arrays split by heads, the input of the non-linearity; `bert_jax/apps/plan/trace.py`.
      usd_on_demand, usd_spot: US list price of a chip-hour; None if none is published.
      backends: the services that rent it: "tpu-api" (Cloud TPU), "gce" (Compute Engine).
      runtime_version: Cloud TPU's software version.
    """

    name: str
    bf16_flops: float
    hbm_gib: float
    usable_hbm_gib: float
    hbm_bytes_per_second: float
    link_bytes_per_second: float
    link_axes: int
    ring_length: int
    clock_hz: float
    devices_per_chip: int
    cores_per_device: int
    device_kind: str
    chip_config: str | None
    saved_replicated: tuple[int, int]
    saved_sharded: tuple[int, int]
    saved_ffn: tuple[int, int]
    usd_on_demand: float | None
    usd_spot: float | None
    backends: tuple[str, ...]
    runtime_version: str | None
    zones: tuple[str, ...]
    host_ram_gb: int | None

    @property
    def device_flops(self) -> float:
        """Returns the peak bfloat16 FLOP/s of one JAX device."""
        return self.bf16_flops / self.devices_per_chip

    @property
    def device_bandwidth(self) -> float:
        """Returns the memory bandwidth of one JAX device in bytes per second."""
        return self.hbm_bytes_per_second / self.devices_per_chip


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Describes a TPU slice: chips of one generation that are rented together.

    Attributes:
      topology: in the notation of libtpu and Compute Engine: "4x4", "2x2x4".
      accelerator_type: Cloud TPU's name of the slice; None if only Compute Engine offers it.
    """

    name: str
    generation: Generation
    chips: int
    hosts: int
    topology: str
    accelerator_type: str | None

    @property
    def devices(self) -> int:
        """Returns the number of JAX devices of the slice (`jax.device_count()`)."""
        return self.chips * self.generation.devices_per_chip

    @property
    def device_hbm_gib(self) -> float:
        """Returns the memory in GiB that a program can use on one JAX device."""
        return self.generation.usable_hbm_gib / self.generation.devices_per_chip

    @property
    def bf16_flops(self) -> float:
        """Returns the peak bfloat16 FLOP/s of all chips together."""
        return self.chips * self.generation.bf16_flops

    @property
    def min_links(self) -> int:
        """Returns the number of links of the chip that has the fewest.

        A chip has two links along each ring and at least one along each other axis, but none along
        an axis of one chip.
        """
        sizes = [int(size) for size in self.topology.split("x")]
        are_rings = [size % self.generation.ring_length == 0 for size in sizes]
        if self.generation.link_axes == 3:
            are_rings = [all(are_rings)] * 3
        return sum(1 + is_ring for size, is_ring in zip(sizes, are_rings, strict=True) if size > 1)

    @property
    def libtpu_topology(self) -> str:
        """Returns the topology name for ahead-of-time compilation with libtpu."""
        return f"{self.generation.name}:{self.topology}"

    def usd_per_hour(self, *, spot: bool) -> float | None:
        """Returns the list price of the whole slice per hour; None if none is published."""
        chip_price = self.generation.usd_spot if spot else self.generation.usd_on_demand
        return None if chip_price is None else chip_price * self.chips


def find_slice(name: str) -> Slice:
    """Returns the slice with this name.

    Raises:
      ConfigError: no slice has that name; the message names the nearest and all slices.
    """
    slices = all_slices()
    if name not in slices:
        by_type = {each.accelerator_type: each.name for each in slices.values()}
        known = [*slices, *filter(None, by_type)]
        # Both kinds of names are searched: v2 to v4 and v5p count cores in accelerator types and
        # others count chips, so these names are often confused.
        (nearest,) = closest_names(name, known, cutoff=0.0)
        raise ConfigError(
            f"slice {name!r} is not known; the nearest is {by_type.get(nearest, nearest)!r} "
            f"(known: {', '.join(slices)})"
        )
    return slices[name]


@functools.cache
def all_slices() -> dict[str, Slice]:
    """Returns all slices by name, in the order of the table."""
    table = _table()
    generations = {name: _generation(name, row) for name, row in table["generations"].items()}
    slices: dict[str, Slice] = {}
    for name, row in table["slices"].items():
        fields: dict[str, Any] = {**row, "generation": generations[row["generation"]]}
        slices[name] = Slice(**fields, name=name)
    return slices


def _generation(name: str, row: dict[str, Any]) -> Generation:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    return Generation(**fields, name=name)


def prices_as_of() -> str:
    """Returns the date of the prices as YYYY-MM-DD."""
    return str(_table()["as_of"])


@functools.cache
def _table() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))
