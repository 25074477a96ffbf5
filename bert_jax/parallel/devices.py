"""Describes the devices and the host of a run, and looks up the peak FLOP/s of the devices."""

import os
import platform
from collections.abc import Sequence
from typing import Any

import jax

from bert_jax.parallel.tpu_slices import all_slices


def hardware_info() -> dict[str, Any]:
    """Returns {"devices", "device_kind", "platform", "processes", "host_cpus", "host_cpu"}.

    "devices" counts the devices of all processes; the two host entries describe this host only.
    """
    devices = jax.devices()
    return {
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "platform": devices[0].platform,
        "processes": jax.process_count(),
        "host_cpus": os.cpu_count(),
        "host_cpu": _cpu_name(),
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine()


_GPU_PEAK_FLOPS = {
    # Dense figures; the data sheets also print twice as much, for sparse matrices.
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
}
"""Dense bf16 FLOP/s by the start of `jax.Device.device_kind`, from NVIDIA's data sheets."""


def peak_flops(devices: Sequence[Any]) -> float | None:
    """Returns the peak bf16 FLOP/s of all devices together, for MFU; None for an unknown kind."""
    kind = devices[0].device_kind
    for generation in (each.generation for each in all_slices().values()):
        # Some versions of JAX report "TPU v5 lite" and "TPU v5", others "TPU v5e" and "TPU v5p".
        if kind in (generation.device_kind, f"TPU {generation.name}"):
            # By device and not by chip: v2, v3 and tpu7x have two JAX devices on a chip, and the
            # peak would be off by two.
            return generation.device_flops * len(devices)
    for name, flops in _GPU_PEAK_FLOPS.items():
        if kind.startswith(name):
            return flops * len(devices)
    return None
