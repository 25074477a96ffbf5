"""Finds process id, number of processes and coordinator: in the environment or TPU metadata.

It reads what `jax._src.clusters.cloud_tpu_cluster` (jax 0.10.2) reads, which is private and needs
jax: on Compute Engine the metadata server's `agent-worker-number` and `worker-network-endpoints`,
on Kubernetes the variables TPU_WORKER_ID and TPU_PROCESS_ADDRESSES or TPU_WORKER_HOSTNAMES. Only
the rendezvous uses it; JAX determines the same values by itself.

Tested against a fake metadata server, not on a real TPU: the values there, and whether the hosts of
a slice can reach each other on the port next to JAX's, are unconfirmed.

Imports the standard library only.
"""

import hashlib
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path

JAX_PORT = "8482"
_METADATA_SERVER = "metadata.google.internal"
_MAX_TRIES, _TIMEOUT_SECONDS = 3, 5.0
# Clusters that JAX checks for before it looks for a TPU slice.
_OTHER_CLUSTERS = {"SLURM_JOB_ID": "Slurm", "OMPI_MCA_orte_hnp_uri": "Open MPI"}


@dataclass(frozen=True, kw_only=True)
class TpuProcess:
    """Identifies a host of a TPU slice; `coordinator` is HOST:PORT of JAX on process 0."""

    coordinator: str
    num_processes: int
    process_id: int


class NotOnTpu(Exception):
    """Reports why the process id cannot be read from TPU metadata."""


def locate(environment: Mapping[str, str]) -> TpuProcess:
    """Returns the process id and coordinator of this host.

    Raises:
      NotOnTpu: not on a TPU slice, on several slices, or the metadata has an unknown format.
    """
    for variable, cluster in _OTHER_CLUSTERS.items():
        if variable in environment:
            raise NotOnTpu(f"{variable} is set, so JAX uses {cluster}")
    if "TPU_SKIP_MDS_QUERY" not in environment:
        server = environment.get("GCE_METADATA_IP", _METADATA_SERVER)
        worker_id = _metadata_attribute(server, "agent-worker-number")
        if worker_id is not None:
            return _on_compute_engine(environment, server, worker_id)
    addresses = environment.get("TPU_PROCESS_ADDRESSES", environment.get("TPU_WORKER_HOSTNAMES"))
    if addresses is None:
        raise NotOnTpu("no metadata of a TPU slice found")
    _require_one_slice(environment.get("MEGASCALE_NUM_SLICES"))
    return _make_tpu_process(
        environment, addresses.split(","), environment.get("TPU_WORKER_ID", "")
    )


def _on_compute_engine(environment: Mapping[str, str], server: str, worker_id: str) -> TpuProcess:
    slices = environment.get("MEGASCALE_NUM_SLICES")
    if slices is None:
        for line in (_metadata_attribute(server, "tpu-env") or "").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "MEGASCALE_NUM_SLICES":
                slices = value.strip().strip("'")
    _require_one_slice(slices)
    hosts = []
    for worker in (_metadata_attribute(server, "worker-network-endpoints") or "").split(","):
        parts = worker.split(":")  # an address, or name:id:address
        if len(parts) not in (1, 3) or not parts[-1]:
            raise NotOnTpu(f"worker-network-endpoints has {worker!r}, expected an address")
        hosts.append(parts[-1])
    return _make_tpu_process(environment, hosts, worker_id)


def _require_one_slice(slices: str | None) -> None:
    if slices and slices != "1":
        raise NotOnTpu(f"this is one of {slices} slices (MEGASCALE_NUM_SLICES)")


def _make_tpu_process(
    environment: Mapping[str, str], hosts: list[str], worker_id: str
) -> TpuProcess:
    if not worker_id.strip().isdigit() or int(worker_id) >= len(hosts):
        raise NotOnTpu(f"the worker number of this host is {worker_id!r}, of {len(hosts)} hosts")
    port = environment.get("JAX_COORDINATOR_PORT", JAX_PORT)
    coordinator_host = environment.get("MEGASCALE_COORDINATOR_ADDRESS") or hosts[0]
    return TpuProcess(
        coordinator=f"{coordinator_host.split(':')[0]}:{port}",
        num_processes=len(hosts),
        process_id=int(worker_id),
    )


def _metadata_attribute(server: str, key: str) -> str | None:
    """Returns a value of the metadata server; None if there is no server or no such value."""
    request = urllib.request.Request(
        f"http://{server}/computeMetadata/v1/instance/attributes/{key}",
        headers={"Metadata-Flavor": "Google"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return _with_retries(lambda: opener.open(request, timeout=_TIMEOUT_SECONDS).read().decode())


def _with_retries(read: Callable[[], str]) -> str | None:
    for _ in range(_MAX_TRIES):
        try:
            return read()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return None
        except (OSError, ValueError):
            continue
    return None


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
