"""The peak of the devices that a run is held against (MFU): TPUs' from the table of slices."""

from collections.abc import Sequence
from typing import Any

from bert_jax.hardware.tpu_slices import all_slices

_GPU_PEAK_FLOPS = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
}
"""Dense bf16 FLOP/s by the start of jax.Device.device_kind; from the maker's data sheets."""


def peak_flops(devices: Sequence[Any]) -> float | None:
    """Peak bf16 FLOP/s of all devices together, or None for a kind that no table has."""
    kind = devices[0].device_kind
    for generation in (each.generation for each in all_slices().values()):
        # Some versions of JAX say "TPU v5 lite" and "TPU v5", others "TPU v5e" and "TPU v5p".
        if kind in (generation.device_kind, f"TPU {generation.name}"):
            return generation.device_flops * len(devices)
    for name, flops in _GPU_PEAK_FLOPS.items():
        if kind.startswith(name):
            return flops * len(devices)
    return None
