"""Chooses zones in the bucket's region, because traffic between regions is slow and costs money."""

from collections.abc import Sequence

from bert_jax.errors import ConfigError
from bert_jax.parallel.tpu_slices import Slice
from tpu.launcher.cloud.gce import region_of

# Multi-region bucket location -> prefixes of the regions in it.
MULTI_REGIONS = {"us": ("us-",), "eu": ("europe-",), "asia": ("asia-",)}


def is_same_region(location: str, zone: str) -> bool:
    """Returns whether a bucket at that location is close to the zone; True for dual regions."""
    if location in MULTI_REGIONS:
        return zone.startswith(MULTI_REGIONS[location])
    if "-" not in location:  # NAM4, EUR5, ASIA1: a pair of regions, not checked further
        return True
    return region_of(zone) == location


def choose_zones(
    slice_type: Slice, location: str, bucket: str, requested: Sequence[str] = ()
) -> tuple[str, ...]:
    """Returns the zones to try: the requested ones, or the known ones in the bucket's region.

    Raises:
      ConfigError: a zone is in another region than the bucket, or no known zone is in its region.
    """
    known_zones = slice_type.generation.zones
    if requested:
        for zone in requested:
            if not is_same_region(location, zone):
                raise ConfigError(
                    f"{bucket} is in {location}, but zone {zone} is not: traffic between regions "
                    f"is slow and costs money; use a bucket in {region_of(zone)} "
                    f"(gcloud storage buckets create gs://NAME --location={region_of(zone)}), or "
                    f"a zone in {location}"
                )
        return tuple(requested)
    zones = tuple(zone for zone in known_zones if is_same_region(location, zone))
    if not zones:
        regions = sorted({region_of(zone) for zone in known_zones})
        raise ConfigError(
            f"{bucket} is in {location}, where {slice_type.generation.name} is not known to be "
            f"offered; use a bucket in one of {', '.join(regions)}, or pass --zones with a zone "
            f"of {location} that offers it"
        )
    return zones
