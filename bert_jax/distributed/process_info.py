"""Describes the processes of a run and compares them before JAX starts.

Imports the standard library only.
"""

import hashlib
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path

_PACKAGES = ("bert_jax", "jax", "jaxlib", "libtpu")


@dataclass(frozen=True, kw_only=True)
class ProcessInfo:
    """Describes one process of a run.

    Attributes:
      process_id, num_processes: as configured in this process.
      local_devices: configured number of devices; None: all devices of the machine.
      host, pid: shown in messages.
      versions: versions of the packages that must be the same in all processes.
    """

    process_id: int
    num_processes: int
    local_devices: int | None = None
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    versions: Mapping[str, str] = field(default_factory=lambda: package_versions())

    @property
    def location(self) -> str:
        """Returns the process as text, for example "pid 4711 on host-2"."""
        return f"pid {self.pid} on {self.host}"


@cache
def package_versions() -> dict[str, str]:
    """Returns installed package versions.

    The version of bert_jax includes a hash of its source, to detect hosts that run older code.
    """
    versions_by_package = {}
    for package in _PACKAGES:
        try:
            versions_by_package[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    package = Path(__file__).parents[1]
    code_hash = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        code_hash.update(f"{file.relative_to(package)}\n".encode() + file.read_bytes())
    versions_by_package["bert_jax"] = (
        f"{versions_by_package.get('bert_jax', '?')} (code {code_hash.hexdigest()[:8]})"
    )
    return versions_by_package


def mismatches(infos: Mapping[int, ProcessInfo]) -> list[str]:
    """Lists the settings that differ between processes, one line each."""
    lines = []
    packages = dict.fromkeys(name for r in infos.values() for name in r.versions)
    values_by_check: dict[str, Mapping[int, object]] = {
        f"{name} has different versions": {n: r.versions.get(name) for n, r in infos.items()}
        for name in packages
    }
    values_by_check["the number of devices differs"] = {
        n: r.local_devices for n, r in infos.items()
    }
    for difference, values in values_by_check.items():
        process_ids_by_value: dict[str, list[int]] = {}
        for process_id, value in sorted(values.items()):
            process_ids_by_value.setdefault("none" if value is None else str(value), []).append(
                process_id
            )
        if len(process_ids_by_value) > 1:
            value_list = "; ".join(
                f"{value} on {format_processes(process_ids)}"
                for value, process_ids in process_ids_by_value.items()
            )
            lines.append(f"{difference}: {value_list}; make it the same on every host")
    return lines


def format_processes(process_ids: Sequence[int]) -> str:
    """Formats process ids as "process 3" or "processes 1, 3"."""
    noun = "process" if len(process_ids) == 1 else "processes"
    return f"{noun} {', '.join(map(str, process_ids))}"
