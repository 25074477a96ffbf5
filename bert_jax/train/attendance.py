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
class Report:
    """What a process says of itself.

    Attributes:
      process, count: its number, and how many it was told there are.
      local_devices: how many devices it was told to have; None: as many as the machine has.
      host, pid: where it runs, to be named in messages.
      versions: of the packages that have to be the same everywhere.
    """

    process: int
    count: int
    local_devices: int | None = None
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    versions: Mapping[str, str] = field(default_factory=lambda: versions())

    @property
    def place(self) -> str:
        """Where the process runs, as "pid 4711 on host-2"."""
        return f"pid {self.pid} on {self.host}"


@cache
def versions() -> dict[str, str]:
    """Versions here; that of bert_jax has a fingerprint of its sources, which hosts may lag in."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    package = Path(__file__).parents[1]
    code = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        code.update(f"{file.relative_to(package)}\n".encode() + file.read_bytes())
    found["bert_jax"] = f"{found.get('bert_jax', '?')} (code {code.hexdigest()[:8]})"
    return found


def problems(reports: Mapping[int, Report]) -> list[str]:
    """In what the processes that came differ; one line for each."""
    lines = []
    packages = dict.fromkeys(name for r in reports.values() for name in r.versions)
    columns: dict[str, Mapping[int, object]] = {
        f"{name} has different versions": {n: r.versions.get(name) for n, r in reports.items()}
        for name in packages
    }
    columns["the number of devices differs"] = {n: r.local_devices for n, r in reports.items()}
    for what, values in columns.items():
        groups: dict[str, list[int]] = {}
        for number, value in sorted(values.items()):
            groups.setdefault("none" if value is None else str(value), []).append(number)
        if len(groups) > 1:
            said = "; ".join(f"{value} on {numbers(these)}" for value, these in groups.items())
            lines.append(f"{what}: {said}; make it the same on every host")
    return lines


def numbers(these: Sequence[int]) -> str:
    """As "process 3" or "processes 1, 3"."""
    word = "process" if len(these) == 1 else "processes"
    return f"{word} {', '.join(map(str, these))}"
