"""What each process of a run says of itself before JAX starts, and in what several differ.

Standard library only, no jax.
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
    """What a process says of itself.

    Attributes:
      process, count: its number, and how many it was told there are.
      local_devices: how many devices it was told to have; None: as many as the machine has.
      host, pid: where it runs, to be named in messages.
      versions: of the packages that have to be the same everywhere.
    """

    process_id: int
    num_processes: int
    local_devices: int | None = None
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    versions: Mapping[str, str] = field(default_factory=lambda: package_versions())

    @property
    def location(self) -> str:
        """Where the process runs, as "pid 4711 on host-2"."""
        return f"pid {self.pid} on {self.host}"


@cache
def package_versions() -> dict[str, str]:
    """Versions here; that of bert_jax has a fingerprint of its sources, which hosts may lag in."""
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
    """In what the processes that came differ; one line for each."""
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
    """As "process 3" or "processes 1, 3"."""
    noun = "process" if len(process_ids) == 1 else "processes"
    return f"{noun} {', '.join(map(str, process_ids))}"
