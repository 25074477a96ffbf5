"""Defines slices and the interface of the two backends that rent them.

A backend builds gcloud command lines and parses their output. It runs no command itself.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from bert_jax.errors import ConfigError
from bert_jax.parallel.tpu_slices import Slice
from tpu import bucket_layout

Capacity = Literal["spot", "on-demand", "reserved"]
SliceStatus = Literal["waiting", "starting", "ready", "degraded", "terminated", "deleting"]
"""waiting: requested and not granted yet (not billed); starting: machines are being created; ready:
all hosts can be used; degraded: exists, but not all of it works; terminated: preempted or failed,
only its name is left; deleting: being deleted."""

BILLED_STATUSES: tuple[SliceStatus, ...] = ("starting", "ready", "degraded")
RUN_LABEL = "bert-run"
OAUTH_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
Argv = list[str]
RemoteCommand = Callable[[int | Literal["auto"]], str]
"""Returns the shell command for a host number, or for "auto": the host looks up its number."""


@dataclass(frozen=True, kw_only=True)
class SliceSpec:
    """Describes the slices of one run: what to rent, where and how."""

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
        """Returns the last part of the run URL."""
        return self.run_url.rsplit("/", 1)[1]

    @property
    def name_prefix(self) -> str:
        """Returns the prefix of the names of all slices of this run."""
        return bucket_layout.slice_name_prefix(self.run_url)

    def slice_name(self, attempt: int) -> str:
        """Returns the name of an attempt's slice."""
        return f"{self.name_prefix}-{attempt}"

    def attempt_of(self, name: str) -> int | None:
        """Returns the attempt that a resource name belongs to; None for names of other runs."""
        match = re.fullmatch(rf"{re.escape(self.name_prefix)}-(0|[1-9][0-9]*)", name)
        return int(match[1]) if match else None


@dataclass(frozen=True, kw_only=True)
class LiveSlice:
    """Describes a slice of this run that exists in the cloud.

    Attributes:
      detail: the state in the cloud's own words, with its error message if there is one.
      addresses: internal IP addresses by host number; empty until the slice is ready.
      ssh_targets: names for `gcloud ... ssh`: one name for all hosts, or one name per host.
      resources: which resources exist: "queued-resource", "node", "group".
    """

    attempt: int
    zone: str
    status: SliceStatus
    detail: str
    addresses: tuple[str, ...] = ()
    ssh_targets: tuple[str, ...] = ()
    resources: frozenset[str] = frozenset()


class Backend(Protocol):
    """Builds the gcloud commands of one way to rent slices, and parses what they print."""

    name: str

    def create_commands(self, attempt: int, zone: str) -> list[Argv]:
        """Returns the commands that request a slice, in the order in which to run them."""
        ...

    def delete_commands(self, attempt: int, zone: str, resources: frozenset[str]) -> list[Argv]:
        """Returns the commands that delete a slice; a "was not found" error counts as success."""
        ...

    def list_commands(self, zone: str) -> dict[str, Argv]:
        """Returns the commands that list the slices of a zone; each prints a JSON list."""
        ...

    def parse_slices(
        self, zone: str, listings: Mapping[str, Sequence[Mapping[str, Any]]]
    ) -> list[LiveSlice]:
        """Returns the slices of this run that the listings contain."""
        ...

    def ssh_commands(
        self, live: LiveSlice, remote_command: RemoteCommand, host: int | None = None
    ) -> list[Argv]:
        """Returns the commands that run `remote_command` on all hosts, or on one."""
        ...


def resolve_backend(requested: str, slice_type: Slice) -> str:
    """Replaces "auto" with a backend of the slice's generation: the Cloud TPU API if available.

    Raises:
      ConfigError: the generation cannot be rented through the requested backend.
    """
    supported = slice_type.generation.backends
    if requested == "auto":
        return "tpu-api" if "tpu-api" in supported else supported[0]
    if requested not in supported:
        raise ConfigError(
            f"--backend {requested}: {slice_type.generation.name} can only be rented through "
            f"{' or '.join(supported)}; omit --backend, or pass --backend {supported[0]}"
        )
    return requested


def resource_basename(path: object) -> str:
    """Returns the last part of a full resource name such as projects/p/zones/z/nodes/n."""
    return str(path or "").rsplit("/", 1)[-1]
