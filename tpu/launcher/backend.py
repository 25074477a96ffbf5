"""What both ways of renting a slice have in common: what is wished for, what is there.

A backend builds the words of commands and reads their answers; it runs nothing itself.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from bert_jax.errors import ConfigError
from bert_jax.hardware.tpu_slices import Slice
from tpu import names

Capacity = Literal["spot", "on-demand", "reserved"]
Status = Literal["waiting", "starting", "ready", "unwell", "dead", "deleting"]
"""waiting: asked for, nothing given yet (not billed) · starting: machines are being made ·
ready: all hosts can be used · unwell: it is there but not whole · dead: taken away or failed,
and only its name is left · deleting."""

LABEL = "bert-run"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
Argv = list[str]
Remote = Callable[[int | Literal["auto"]], str]
"""The command for a host, by its number, or "auto" where the host knows it itself."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where slices of one run are made, and how."""

    run_url: str
    slice: Slice
    project: str
    capacity: Capacity = "spot"
    service_account: str | None = None
    internal_ips: bool = False
    iap: bool = False
    wait_hours: float = 24.0
    max_hours: float = 12.0

    @property
    def run_id(self) -> str:
        """The last word of the URL."""
        return self.run_url.rsplit("/", 1)[1]

    @property
    def prefix(self) -> str:
        """How names of its slices begin."""
        return names.slice_prefix(self.run_url)

    def name(self, incarnation: int) -> str:
        """Of the slice of that life."""
        return f"{self.prefix}-{incarnation}"

    def incarnation(self, name: str) -> int | None:
        """The life that a name of ours belongs to; None for other people's names."""
        found = re.fullmatch(rf"{re.escape(self.prefix)}-(0|[1-9][0-9]*)", name)
        return int(found[1]) if found else None


@dataclass(frozen=True, kw_only=True)
class LiveSlice:
    """A slice of this run that the cloud knows of.

    Attributes:
      detail: the cloud's own words for its state, and for what went wrong with it.
      addresses: internal ones, by host; empty until it is ready.
      machines: what ssh is told: one name for all hosts, or one for each.
      parts: which resources exist, as "queued-resource", "node", "group".
    """

    incarnation: int
    zone: str
    status: Status
    detail: str
    addresses: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    parts: frozenset[str] = frozenset()


class Backend(Protocol):
    """One way of renting."""

    name: str

    def create(self, incarnation: int, zone: str) -> list[Argv]:
        """Commands, in their order, that ask for a slice."""
        ...

    def delete(self, incarnation: int, zone: str, parts: frozenset[str]) -> list[Argv]:
        """Commands that take away what exists of it; "was not found" is success."""
        ...

    def questions(self, zone: str) -> dict[str, Argv]:
        """What to ask to see all slices of this run in a zone; answers are JSON lists."""
        ...

    def read(
        self, zone: str, answers: Mapping[str, Sequence[Mapping[str, Any]]]
    ) -> list[LiveSlice]:
        """The slices behind the answers."""
        ...

    def ssh(self, live: LiveSlice, remote: Remote, host: int | None = None) -> list[Argv]:
        """Commands that run `remote` on all hosts, or on one."""
        ...


def backend_name(wanted: str, chosen: Slice) -> str:
    """ "auto" turned into what the generation has: the Cloud TPU API where it can be had.

    Raises:
      ConfigError: the generation cannot be rented that way.
    """
    known = chosen.generation.backends
    if wanted == "auto":
        return "tpu-api" if "tpu-api" in known else known[0]
    if wanted not in known:
        raise ConfigError(
            f"--backend {wanted}: {chosen.generation.name} is rented through {' or '.join(known)} "
            f"only; leave --backend away, or give --backend {known[0]}"
        )
    return wanted


def make_backend(name: str, site: Site) -> Backend:
    """The backend of that name."""
    from tpu.launcher.gce import ComputeEngine
    from tpu.launcher.tpu_api import TpuApi

    return {"tpu-api": TpuApi, "gce": ComputeEngine}[name](site)


def last(path: object) -> str:
    """The last part of a resource's full name."""
    return str(path or "").rsplit("/", 1)[-1]
