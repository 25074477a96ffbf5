"""Which process of how many this host is on a TPU slice, and where process 0 is, by its metadata.

A restatement of what `jax._src.clusters.cloud_tpu_cluster` (jax 0.10.2) reads, which has no public
name and needs jax: on Compute Engine the metadata server's `agent-worker-number` and
`worker-network-endpoints`, on Kubernetes the variables TPU_WORKER_ID and TPU_PROCESS_ADDRESSES or
TPU_WORKER_HOSTNAMES. It serves the rendezvous alone: JAX goes on to find its place by itself.

Tested against a metadata server of our own. It was not run on a real TPU: neither the values there,
nor whether hosts of a slice reach each other on the port beside JAX's own, have been seen.
"""

import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass

JAX_PORT = "8482"
_SERVER = "metadata.google.internal"
_TRIES, _TIMEOUT = 3, 5.0
# Clusters that JAX recognises before a TPU slice.
_OTHERS = {"SLURM_JOB_ID": "Slurm", "OMPI_MCA_orte_hnp_uri": "Open MPI"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """One host's place in its slice; `coordinator` is HOST:PORT of JAX on process 0."""

    coordinator: str
    num_processes: int
    process_id: int


class Unknown(Exception):
    """The place cannot be told; the message is the reason."""


def find(environment: Mapping[str, str]) -> Place:
    """The place of this host.

    Raises:
      Unknown: not on a TPU slice, on several slices together, or metadata of an unknown form.
    """
    for variable, cluster in _OTHERS.items():
        if variable in environment:
            raise Unknown(f"{variable} is set, so that JAX follows {cluster}")
    if "TPU_SKIP_MDS_QUERY" not in environment:
        server = environment.get("GCE_METADATA_IP", _SERVER)
        number = _attribute(server, "agent-worker-number")
        if number is not None:
            return _on_compute_engine(environment, server, number)
    names = environment.get("TPU_PROCESS_ADDRESSES", environment.get("TPU_WORKER_HOSTNAMES"))
    if names is None:
        raise Unknown("there is no TPU slice's metadata here")
    _one_slice(environment.get("MEGASCALE_NUM_SLICES"))
    return _place(environment, names.split(","), environment.get("TPU_WORKER_ID", ""))


def _on_compute_engine(environment: Mapping[str, str], server: str, number: str) -> Place:
    slices = environment.get("MEGASCALE_NUM_SLICES")
    if slices is None:
        for line in (_attribute(server, "tpu-env") or "").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "MEGASCALE_NUM_SLICES":
                slices = value.strip().strip("'")
    _one_slice(slices)
    hosts = []
    for worker in (_attribute(server, "worker-network-endpoints") or "").split(","):
        parts = worker.split(":")  # an address, or name:id:address
        if len(parts) not in (1, 3) or not parts[-1]:
            raise Unknown(f"worker-network-endpoints has {worker!r}, expected an address")
        hosts.append(parts[-1])
    return _place(environment, hosts, number)


def _one_slice(slices: str | None) -> None:
    if slices and slices != "1":
        raise Unknown(f"this is one of {slices} slices (MEGASCALE_NUM_SLICES)")


def _place(environment: Mapping[str, str], hosts: list[str], number: str) -> Place:
    if not number.strip().isdigit() or int(number) >= len(hosts):
        raise Unknown(f"the number of this host is {number!r}, of {len(hosts)} hosts")
    port = environment.get("JAX_COORDINATOR_PORT", JAX_PORT)
    first = environment.get("MEGASCALE_COORDINATOR_ADDRESS") or hosts[0]
    return Place(
        coordinator=f"{first.split(':')[0]}:{port}",
        num_processes=len(hosts),
        process_id=int(number),
    )


def _attribute(server: str, key: str) -> str | None:
    """A value of the metadata server; None where there is no server, or no such value."""
    request = urllib.request.Request(
        f"http://{server}/computeMetadata/v1/instance/attributes/{key}",
        headers={"Metadata-Flavor": "Google"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return _repeatedly(lambda: opener.open(request, timeout=_TIMEOUT).read().decode())


def _repeatedly(read: Callable[[], str]) -> str | None:
    for _ in range(_TRIES):
        try:
            return read()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return None
        except (OSError, ValueError):
            continue
    return None
