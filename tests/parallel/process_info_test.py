"""Tests finding a host's index in a TPU slice, with a local metadata server and variables."""

import http.server
import socket
import threading

import pytest

from bert_jax.apps.simulate.attempt import free_port
from bert_jax.errors import UserError
from bert_jax.parallel import process_info, processes
from bert_jax.parallel.process_info import NotOnTpu, TpuProcess, locate

OLD_FORM = "unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3"


@pytest.fixture
def metadata():
    """Returns a function from attributes to the address of a server that serves them."""
    servers = []

    def serve(**attributes: str) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                assert self.headers["Metadata-Flavor"] == "Google"
                name = self.path.removeprefix("/computeMetadata/v1/instance/attributes/")
                value = attributes.get(name.replace("-", "_"))
                self.send_response(404 if value is None else 200)
                self.end_headers()
                self.wfile.write((value or "no such attribute").encode())

            def log_message(self, format, *args):
                pass

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"127.0.0.1:{servers[-1].server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("endpoints", [OLD_FORM, "10.0.0.2,10.0.0.3"])
def test_compute_engine_metadata(metadata, endpoints):
    server = metadata(agent_worker_number="1", worker_network_endpoints=endpoints)
    expected = TpuProcess(coordinator="10.0.0.2:8482", num_processes=2, process_id=1)
    assert locate({"GCE_METADATA_IP": server}) == expected


def test_kubernetes_variables():
    environment = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "pod-0.svc,pod-1.svc",
        "TPU_WORKER_ID": "1",
        "JAX_COORDINATOR_PORT": "1234",
    }
    assert locate(environment) == TpuProcess(
        coordinator="pod-0.svc:1234", num_processes=2, process_id=1
    )


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({}, "no metadata of a TPU slice found"),
        (
            {
                "agent_worker_number": "0",
                "worker_network_endpoints": OLD_FORM,
                "tpu_env": "ZONE: 'a'\nMEGASCALE_NUM_SLICES: '2'\n",
            },
            "one of 2 slices",
        ),
        ({"agent_worker_number": "0"}, "has '', expected an address"),
        ({"agent_worker_number": "0", "worker_network_endpoints": "a:b"}, "has 'a:b'"),
        ({"agent_worker_number": "2", "worker_network_endpoints": OLD_FORM}, "'2', of 2 hosts"),
        ({"agent_worker_number": "one", "worker_network_endpoints": OLD_FORM}, "is 'one'"),
    ],
)
def test_unknown_location_has_a_reason(metadata, attributes, reason):
    with pytest.raises(NotOnTpu, match=reason):
        locate({"GCE_METADATA_IP": metadata(**attributes)})


def test_slurm_and_other_clusters_take_precedence(metadata):
    with pytest.raises(NotOnTpu, match="SLURM_JOB_ID is set, so JAX uses Slurm"):
        locate({"SLURM_JOB_ID": "1", "GCE_METADATA_IP": metadata(agent_worker_number="0")})


def test_missing_metadata_server():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(NotOnTpu, match="no metadata of a TPU slice"):
            locate({"GCE_METADATA_IP": address})


def test_auto_coordinator_uses_the_metadata(metadata, monkeypatch):
    server = metadata(agent_worker_number="1", worker_network_endpoints="127.0.0.1,127.0.0.1")
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
    monkeypatch.setenv("GCE_METADATA_IP", server)
    monkeypatch.setenv("BERT_JAX_RENDEZVOUS_SECONDS", "0.3")
    port = free_port()
    monkeypatch.setenv("JAX_COORDINATOR_PORT", str(port))
    config = processes.DistributedConfig(coordinator="auto")
    with pytest.raises(UserError, match=rf"process 1 of 2 could not reach .*127.0.0.1:{port + 1}"):
        processes.initialize(config)
    with pytest.raises(UserError, match=r"BERT_JAX_NUM_PROCESSES=4, .* lists 2 hosts"):
        processes.initialize(processes.DistributedConfig(coordinator="auto", num_processes=4))


def test_port_equals_the_port_of_jax():
    """Fails if JAX changes its port; then process_info.py has to change too."""
    from jax._src.clusters import cloud_tpu_cluster

    assert cloud_tpu_cluster.coordinator_port == process_info.JAX_PORT
