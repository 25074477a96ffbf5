"""Where a bucket is and where slices may be: in one region, or traffic is slow and paid for."""

from collections.abc import Sequence

from bert_jax.errors import ConfigError
from bert_jax.hardware.tpu_slices import Slice
from tpu.launcher.gce import region_of

# Multi-regions of buckets -> the beginnings of their regions' names.
CONTINENTS = {"us": ("us-",), "eu": ("europe-",), "asia": ("asia-",)}


def fits(location: str, zone: str) -> bool:
    """Whether a bucket at that location is near the zone; dual regions are taken at their word."""
    if location in CONTINENTS:
        return zone.startswith(CONTINENTS[location])
    if "-" not in location:  # NAM4, EUR5, ASIA1: pairs of regions
        return True
    return region_of(zone) == location


def choose_zones(
    kind: Slice, location: str, bucket: str, wanted: Sequence[str] = ()
) -> tuple[str, ...]:
    """The zones to try: those asked for, or those of the table that are in the bucket's region.

    Raises:
      ConfigError: a zone is in another region than the bucket, or the table has none there.
    """
    table = kind.generation.zones
    if wanted:
        for zone in wanted:
            if not fits(location, zone):
                raise ConfigError(
                    f"{bucket} is in {location}, zone {zone} is not: data and checkpoints would "
                    f"cross regions, slowly and at a price; take a bucket in {region_of(zone)} "
                    f"(gcloud storage buckets create gs://NAME --location={region_of(zone)}), or "
                    f"a zone in {location}"
                )
        return tuple(wanted)
    found = tuple(zone for zone in table if fits(location, zone))
    if not found:
        regions = sorted({region_of(zone) for zone in table})
        raise ConfigError(
            f"{bucket} is in {location}, where {kind.generation.name} is not known to be offered; "
            f"take a bucket in one of {', '.join(regions)}, or name a zone of {location} "
            "with --zones if you know better"
        )
    return found
