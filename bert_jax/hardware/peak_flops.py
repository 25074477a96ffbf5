"""Looks up the peak FLOP/s of the current devices, used to compute MFU."""

from collections.abc import Sequence
from typing import Any

from bert_jax.hardware.tpu_slices import all_slices

_GPU_PEAK_FLOPS = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
}
"""Dense bf16 FLOP/s by the start of `jax.Device.device_kind`, from NVIDIA's data sheets."""


def peak_flops(devices: Sequence[Any]) -> float | None:
    """Returns the peak bf16 FLOP/s of all devices together; None for an unknown kind of device."""
    kind = devices[0].device_kind
    for generation in (each.generation for each in all_slices().values()):
        # Some versions of JAX report "TPU v5 lite" and "TPU v5", others "TPU v5e" and "TPU v5p".
        if kind in (generation.device_kind, f"TPU {generation.name}"):
            return generation.device_flops * len(devices)
    for name, flops in _GPU_PEAK_FLOPS.items():
        if kind.startswith(name):
            return flops * len(devices)
    return None
