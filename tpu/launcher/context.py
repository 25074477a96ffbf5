"""One run as the verbs see it: what it is, where it lies, and the hands that reach it."""

from dataclasses import dataclass

from bert_jax.errors import ConfigError
from bert_jax.hardware.tpu_slices import find_slice
from tpu import names
from tpu.launcher.backend import Backend, make_backend
from tpu.launcher.bucket import Bucket
from tpu.launcher.gcloud import Runner
from tpu.launcher.manifest import Manifest

STOP, LOOP = "STOP", "babysit.json"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run and its surroundings."""

    manifest: Manifest
    folder: names.RunFolder
    runner: Runner
    bucket: Bucket
    backend: Backend

    @property
    def stop_url(self) -> str:
        """There when someone asked the run to stop."""
        return f"{self.folder.url}/{STOP}"

    @property
    def loop_url(self) -> str:
        """What the restart loop remembers."""
        return f"{self.folder.url}/{LOOP}"

    @property
    def bucket_url(self) -> str:
        """gs://BUCKET."""
        return "gs://" + self.folder.url.removeprefix("gs://").split("/")[0]

    @property
    def usd_per_hour(self) -> float | None:
        """What an hour of its slice costs."""
        return usd_per_hour(self.manifest.slice, self.manifest.capacity == "spot")

    def words(self, verb: str) -> str:
        """The command that does this verb with this run."""
        return f"tpu/pod {verb} --bucket {self.bucket_url} --run-id {self.manifest.run_id}"


def make_run(runner: Runner, manifest: Manifest, folder: names.RunFolder) -> Run:
    """Puts a run together."""
    return Run(
        manifest=manifest,
        folder=folder,
        runner=runner,
        bucket=Bucket(runner),
        backend=make_backend(manifest.backend, manifest.site(folder.url)),
    )


def usd_per_hour(slice_name: str, spot: bool) -> float | None:
    """List price; of spot where one is published, or else the price on demand, which is more."""
    kind = find_slice(slice_name)
    spot_price = kind.usd_per_hour(spot=True) if spot else None
    return kind.usd_per_hour(spot=False) if spot_price is None else spot_price


def slice_hours(manifest: Manifest) -> float:
    """Hours of slices that the run may take: by --max-hours or --max-usd, whichever is less.

    Raises:
      ConfigError: --max-usd cannot be kept, because no price is known.
    """
    if manifest.max_usd is None:
        return manifest.max_hours
    price = usd_per_hour(manifest.slice, manifest.capacity == "spot")
    if price is None:
        raise ConfigError(
            f"--max-usd {manifest.max_usd:g}: no price of {manifest.slice} is published; "
            "limit the run with --max-hours instead"
        )
    return min(manifest.max_hours, manifest.max_usd / price)
