"""The table of TPU slices (`tpu_slices.json`), read into types. Standard library only.

Nothing else in the project names a slice; the launcher in `tpu/` reads the same file through here.
"""

import difflib
import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.errors import ConfigError

FILE = Path(__file__).with_name("tpu_slices.json")


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One generation of TPU chips; figures are for one chip.

    Attributes:
      bf16_flops: peak dense bfloat16 FLOP/s.
      hbm_gib, usable_hbm_gib: memory, and what XLA can give to a program.
      link_bytes_per_second: one link, one way; a chip has two links along each of `link_axes`.
      clock_hz: of the tensor core, to turn the compiler's cycles into seconds.
      devices_per_chip: how many JAX devices a chip is.
      cores_per_device: tensor cores that a JAX device has; two share a kernel's grid.
      chip_config: what libtpu has to be told to see whole chips, or None.
      saved_replicated, saved_sharded, saved_ffn: what XLA keeps of a layer for the backward pass;
        see `activations.SavedBytes`.
      usd_on_demand, usd_spot: US list price of a chip-hour; None where none is published.
      backends: how it can be rented: "tpu-api" (Cloud TPU), "gce" (Compute Engine).
      runtime_version: of Cloud TPU; machine_type, image_family: of Compute Engine.
    """

    name: str
    bf16_flops: float
    hbm_gib: float
    usable_hbm_gib: float
    hbm_bytes_per_second: float
    link_bytes_per_second: float
    link_axes: int
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
    machine_type: str | None
    image_family: str | None
    zones: tuple[str, ...]
    host_ram_gb: int | None

    @property
    def device_flops(self) -> float:
        """Peak bfloat16 FLOP/s of one JAX device."""
        return self.bf16_flops / self.devices_per_chip

    @property
    def device_bandwidth(self) -> float:
        """Bytes a second between one JAX device and its memory."""
        return self.hbm_bytes_per_second / self.devices_per_chip


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Chips of one generation that are rented together.

    Attributes:
      topology: as libtpu and Compute Engine write it: "4x4", "2x2x4".
      accelerator_type: Cloud TPU's name for it; None where only Compute Engine rents it.
    """

    name: str
    generation: Generation
    chips: int
    hosts: int
    topology: str
    accelerator_type: str | None

    @property
    def devices(self) -> int:
        """`jax.device_count()` on it."""
        return self.chips * self.generation.devices_per_chip

    @property
    def device_hbm_gib(self) -> float:
        """Memory that XLA can use on one JAX device."""
        return self.generation.usable_hbm_gib / self.generation.devices_per_chip

    @property
    def bf16_flops(self) -> float:
        """Peak bfloat16 FLOP/s of all chips together."""
        return self.chips * self.generation.bf16_flops

    @property
    def libtpu_topology(self) -> str:
        """The name under which libtpu compiles for it."""
        return f"{self.generation.name}:{self.topology}"

    def usd_per_hour(self, *, spot: bool) -> float | None:
        """List price of the whole slice; None where none is published."""
        each = self.generation.usd_spot if spot else self.generation.usd_on_demand
        return None if each is None else each * self.chips


def find_slice(name: str) -> Slice:
    """The slice of that name.

    Raises:
      ConfigError: there is none; names the nearest and all of them.
    """
    slices = all_slices()
    if name not in slices:
        by_type = {each.accelerator_type: each.name for each in slices.values()}
        known = [*slices, *filter(None, by_type)]
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"slice {name!r} is not known; the nearest is {by_type.get(nearest, nearest)!r} "
            f"(known: {', '.join(slices)})"
        )
    return slices[name]


@functools.cache
def all_slices() -> dict[str, Slice]:
    """Every slice of the table by name, in its order."""
    table = _table()
    generations = {name: _generation(name, row) for name, row in table["generations"].items()}
    return {
        name: Slice(**{**row, "generation": generations[row["generation"]]}, name=name)
        for name, row in table["slices"].items()
    }


def _generation(name: str, row: dict[str, Any]) -> Generation:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    return Generation(**fields, name=name)


def prices_as_of() -> str:
    """The date of the table's prices, as YYYY-MM-DD."""
    return str(_table()["as_of"])


@functools.cache
def _table() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))
