"""Describes the hardware of a run, for its records."""

import os
import platform
from typing import Any

import jax


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
