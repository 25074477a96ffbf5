"""Holds one run with everything that reaches it: its bucket, its backend, the command runner."""

from dataclasses import dataclass

from bert_jax.errors import ConfigError
from bert_jax.parallel.tpu_slices import find_slice
from tpu import bucket_layout
from tpu.launcher import TPUCTL
from tpu.launcher.cloud.backend import Backend, SliceSpec
from tpu.launcher.cloud.bucket import Bucket
from tpu.launcher.cloud.gce import ComputeEngine
from tpu.launcher.cloud.gcloud import CommandRunner
from tpu.launcher.cloud.tpu_api import TpuApi
from tpu.launcher.runs.manifest import RunManifest

STOP_MARKER = "STOP"


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Holds a run and what is needed to read and change it."""

    manifest: RunManifest
    folder: bucket_layout.RunFolder
    runner: CommandRunner
    bucket: Bucket
    backend: Backend

    @property
    def stop_url(self) -> str:
        """Returns the URL of the object that exists once someone has asked the run to stop."""
        return f"{self.folder.url}/{STOP_MARKER}"

    @property
    def bucket_url(self) -> str:
        """Returns gs://BUCKET."""
        return "gs://" + self.folder.url.removeprefix("gs://").split("/")[0]

    @property
    def usd_per_hour(self) -> float | None:
        """Returns the list price of one hour of its slice."""
        return usd_per_hour(self.manifest.slice, self.manifest.capacity == "spot")

    def command_line(self, command: str) -> str:
        """Returns the command line that runs this launcher command for this run."""
        return f"{TPUCTL} {command} --bucket {self.bucket_url} --run-id {self.manifest.run_id}"


def make_run_context(
    runner: CommandRunner, manifest: RunManifest, folder: bucket_layout.RunFolder
) -> RunContext:
    """Returns the context of the run that the manifest describes."""
    return RunContext(
        manifest=manifest,
        folder=bucket_layout.RunFolder(folder.url, layout_version=manifest.version),
        runner=runner,
        bucket=Bucket(runner),
        backend=make_backend(manifest.backend, manifest.slice_spec(folder.url)),
    )


def make_backend(name: str, spec: SliceSpec) -> Backend:
    """Returns the backend of that name."""
    return {"tpu-api": TpuApi, "gce": ComputeEngine}[name](spec)


def usd_per_hour(slice_name: str, spot: bool) -> float | None:
    """Returns the list price of an hour; the on-demand price if no spot price is published."""
    slice_type = find_slice(slice_name)
    spot_price = slice_type.usd_per_hour(spot=True) if spot else None
    return slice_type.usd_per_hour(spot=False) if spot_price is None else spot_price


def max_slice_hours(manifest: RunManifest) -> float:
    """Returns the slice hours that the run may use: the lower of --max-hours and --max-usd.

    Raises:
      ConfigError: --max-usd is set, but no price of the slice is known.
    """
    if manifest.max_usd is None:
        return manifest.max_hours
    price = usd_per_hour(manifest.slice, manifest.capacity == "spot")
    if price is None:
        raise ConfigError(
            f"--max-usd {manifest.max_usd:g}: no price of {manifest.slice} is published; "
            "use --max-hours instead"
        )
    return min(manifest.max_hours, manifest.max_usd / price)
