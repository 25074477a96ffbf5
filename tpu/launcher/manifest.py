"""What a run is and how it is rented, in the bucket: the same id for another run is refused."""

import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bert_jax.errors import UserError
from bert_jax.hardware.tpu_slices import Slice, find_slice
from tpu import names, strict_json
from tpu.launcher.backend import Capacity, Site
from tpu.launcher.bucket import Bucket
from tpu.protocol import Order, SliceShape

# What two launches of one run must have in common; the rest may change between them. Slices of
# another project or way of renting would not be seen any more.
IDENTITY = (
    "run_id",
    "slice",
    "backend",
    "project",
    "mode",
    "arguments",
    "data",
    "secrets",
    "bundle",
)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A run: what, on what, with which code and data; and how it is rented.

    Attributes:
      zones: where slices of it may be: those wanted now, and then those of earlier launches.
    """

    version: int = 1
    run_id: str
    slice: str
    backend: Literal["tpu-api", "gce"]
    mode: Literal["pod", "lanes"]
    arguments: tuple[str, ...]
    bundle: str
    data: dict[str, str]
    secrets: dict[str, str]
    requires: dict[str, str]
    project: str
    zones: tuple[str, ...]
    capacity: Capacity
    service_account: str | None
    internal_ips: bool
    iap: bool
    max_hours: float
    max_usd: float | None
    wait_hours: float
    coordinator_port: int
    created: str

    @property
    def kind(self) -> Slice:
        """What is rented."""
        return find_slice(self.slice)

    def site(self, run_url: str) -> Site:
        """Where its slices are made."""
        return Site(
            run_url=run_url,
            slice=self.kind,
            project=self.project,
            capacity=self.capacity,
            service_account=self.service_account,
            internal_ips=self.internal_ips,
            iap=self.iap,
            wait_hours=self.wait_hours,
            max_hours=self.max_hours,
        )

    def order(self, run_url: str, incarnation: int, hosts: tuple[str, ...]) -> Order:
        """All that the hosts of one life need to know."""
        kind = self.kind
        return Order(
            run_id=self.run_id,
            incarnation=incarnation,
            slice=SliceShape(
                name=kind.name, hosts=kind.hosts, devices=kind.devices, chips=kind.chips
            ),
            bundle=self.bundle,
            run_url=run_url,
            mode=self.mode,
            arguments=self.arguments,
            data=self.data,
            secrets=self.secrets,
            max_hours=self.max_hours,
            hosts=hosts,
            coordinator_port=self.coordinator_port,
            requires=self.requires,
        )


def settle(bucket: Bucket, folder: names.RunFolder, wanted: Manifest) -> Manifest:
    """Writes the manifest of a new run; of a known one insists that it is the same run.

    Returns:
      What holds now, to be written by `write`: zones of both, everything else as wanted now.

    Raises:
      UserError: another run has this id; names the fields that differ.
    """
    if bucket.write(folder.manifest, strict_json.to_text(wanted), generation=0):
        return wanted
    there = load(bucket, folder)
    differing = [name for name in IDENTITY if getattr(there, name) != getattr(wanted, name)]
    if differing:
        lines = "".join(
            f"\n  {name}: {_plain(getattr(there, name))} there, {_plain(getattr(wanted, name))} now"
            for name in differing
        )
        raise UserError(
            f"run id {wanted.run_id!r} is taken by another run:{lines}\n"
            "choose another --run-id; or go on with that run, as it is, by `tpu/pod babysit "
            f"--bucket gs://{folder.url.split('/')[2]} --run-id {wanted.run_id}`"
        )
    zones = tuple(dict.fromkeys([*wanted.zones, *there.zones]))
    return replace(wanted, zones=zones, created=there.created)


def write(bucket: Bucket, folder: names.RunFolder, manifest: Manifest) -> None:
    """Writes what holds from now on; for whoever holds the lease.

    Raises:
      GcloudError: it cannot be written.
    """
    bucket.write(folder.manifest, strict_json.to_text(manifest))


def load(bucket: Bucket, folder: names.RunFolder) -> Manifest:
    """The manifest of a run.

    Raises:
      UserError: there is none.
    """
    text = bucket.read(folder.manifest)
    if text is None:
        raise UserError(
            f"{folder.manifest} does not exist; there is no such run: look with `gcloud "
            f"storage ls {folder.url.rsplit('/', 1)[0]}/`, or start one with `tpu/pod launch`"
        )
    return strict_json.from_text(Manifest, text, folder.manifest)


def required_versions(root: Path) -> dict[str, str]:
    """The versions that all hosts must have, from constraints.txt, for the hosts' Python 3.11."""
    found: dict[str, str] = {}
    for line in (root / "constraints.txt").read_text(encoding="utf-8").splitlines():
        match = re.match(r"(jax|jaxlib|libtpu)==([0-9.]+)", line)
        if match:
            found.setdefault(match[1], match[2])
    return found


def now_text() -> str:
    """The time, for people."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value):
        return f"{value[:12]}..."
    return repr(value)
