"""Defines the manifest of a run in the bucket: its job, code and data, and the slices to create.

A second launch with the same run id must agree with the manifest in `IDENTITY_FIELDS`.
"""

import json
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bert_jax.errors import UserError
from bert_jax.parallel.tpu_slices import Slice, find_slice
from tpu import bucket_layout, strict_json
from tpu.launcher import TPUCTL
from tpu.launcher.cloud.backend import Capacity, SliceSpec
from tpu.launcher.cloud.bucket import Bucket
from tpu.launcher.runs import version_1
from tpu.protocol import JobSpec, SliceShape

# Fields that all launches of a run share. A slice in another project or of another backend would
# not show up in listings any more, so those cannot change either.
IDENTITY_FIELDS = (
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
class RunManifest:
    """Describes a run: its job, code and data, and the slices to create for it.

    A slice is determined by its type, zone and capacity (on-demand, spot, ...).

    Attributes:
      version: layout version of its objects; 1 for runs whose bundle reads the old names.
      zones: zones that may contain slices of it: those to use now, then those of earlier launches.
    """

    version: int = bucket_layout.LAYOUT_VERSION
    run_id: str
    slice: str
    backend: Literal["tpu-api", "gce"]
    mode: Literal["pod", "shards"]
    arguments: tuple[str, ...]
    bundle: str
    data: dict[str, str]
    secrets: dict[str, str]
    required_versions: dict[str, str]
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
    def slice_type(self) -> Slice:
        """Returns the slice type, looked up by its name."""
        return find_slice(self.slice)

    def slice_spec(self, run_url: str) -> SliceSpec:
        """Returns what a backend needs to know to create slices for this run."""
        return SliceSpec(
            run_url=run_url,
            slice=self.slice_type,
            project=self.project,
            capacity=self.capacity,
            service_account=self.service_account,
            internal_ips=self.internal_ips,
            iap=self.iap,
            wait_hours=self.wait_hours,
            max_hours=self.max_hours,
        )

    def job_spec(self, run_url: str, attempt: int, host_addresses: tuple[str, ...]) -> JobSpec:
        """Returns everything that the hosts of one attempt need to know."""
        slice_type = self.slice_type
        return JobSpec(
            run_id=self.run_id,
            attempt=attempt,
            slice=SliceShape(
                name=slice_type.name,
                hosts=slice_type.hosts,
                devices=slice_type.devices,
                chips=slice_type.chips,
            ),
            bundle=self.bundle,
            run_url=run_url,
            mode=self.mode,
            arguments=self.arguments,
            data=self.data,
            secrets=self.secrets,
            max_hours=self.max_hours,
            host_addresses=host_addresses,
            coordinator_port=self.coordinator_port,
            required_versions=self.required_versions,
        )


def create_or_validate(
    bucket: Bucket, folder: bucket_layout.RunFolder, requested: RunManifest
) -> RunManifest:
    """Writes the manifest of a new run, or checks that an existing run is the same run.

    Returns:
      The manifest to pass to `write`: zones of both, all other fields as requested.

    Raises:
      UserError: another run has this id; the message lists the fields that differ.
    """
    if bucket.write(folder.manifest, strict_json.to_text(requested), generation=0):
        return requested
    existing = load(bucket, folder)
    differing = [
        name for name in IDENTITY_FIELDS if getattr(existing, name) != getattr(requested, name)
    ]
    if differing:
        lines = "".join(
            f"\n  {name}: existing {_format_value(getattr(existing, name))}, "
            f"requested {_format_value(getattr(requested, name))}"
            for name in differing
        )
        raise UserError(
            f"run id {requested.run_id!r} already belongs to a different run:{lines}\n"
            f"choose another --run-id; or resume the existing run as it is: `{TPUCTL} babysit "
            f"--bucket gs://{folder.url.split('/')[2]} --run-id {requested.run_id}`"
        )
    zones = tuple(dict.fromkeys([*requested.zones, *existing.zones]))
    return replace(requested, zones=zones, created=existing.created)


def write(bucket: Bucket, folder: bucket_layout.RunFolder, manifest: RunManifest) -> None:
    """Overwrites the manifest; only the holder of the lease may do that.

    Raises:
      GcloudError: it cannot be written.
    """
    bucket.write(folder.manifest, strict_json.to_text(manifest))


def load(bucket: Bucket, folder: bucket_layout.RunFolder) -> RunManifest:
    """Reads the manifest of a run, also one of layout version 1.

    Raises:
      UserError: the run does not exist, or its manifest is invalid.
    """
    text = bucket.read(folder.manifest)
    if text is None:
        raise UserError(
            f"{folder.manifest} does not exist, so there is no such run; list the runs with "
            f"`gcloud storage ls {folder.url.rsplit('/', 1)[0]}/`, or start one with `{TPUCTL} "
            "launch`"
        )
    try:
        data = json.loads(text)
    except ValueError:
        data = None  # from_text below reports what is wrong with it
    if isinstance(data, dict) and data.get("version") == 1:
        text = json.dumps(version_1.upgrade_manifest(data))
    manifest = strict_json.from_text(RunManifest, text, folder.manifest)
    if manifest.version not in (1, bucket_layout.LAYOUT_VERSION):
        raise UserError(
            f"{folder.manifest} has version {manifest.version}, this launcher reads up to "
            f"{bucket_layout.LAYOUT_VERSION}: use the checkout that launched the run"
        )
    return manifest


def read_required_versions(root: Path) -> dict[str, str]:
    """Reads the versions that all hosts must have from constraints.txt (for Python 3.11)."""
    versions: dict[str, str] = {}
    for line in (root / "constraints.txt").read_text(encoding="utf-8").splitlines():
        match = re.match(r"(jax|jaxlib|libtpu)==([0-9.]+)", line)
        if match:
            versions.setdefault(match[1], match[2])
    return versions


def utc_timestamp() -> str:
    """Returns the current time, for people to read."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _format_value(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value):
        return f"{value[:12]}..."
    return repr(value)
