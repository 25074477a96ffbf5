"""Runs a server in a thread of the test process, on a free port."""

import contextlib
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import httpx2

from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.run import Server, bind
from bert_jax.apps.serve.served_models import ServedModel, ServedModels
from bert_jax.apps.serve.server_state import ServerState


@dataclass(frozen=True)
class RunningServer:
    """Holds a server that runs: its state, its address and a client."""

    server: Server
    state: ServerState
    url: str
    client: httpx2.Client

    def post(self, path: str, /, **fields: object) -> httpx2.Response:
        """Sends JSON and returns the response."""
        return self.client.post(path, json=fields)


@contextlib.contextmanager
def running_server(
    models: Sequence[ServedModel], config: ServerConfig, *, wait: bool = True
) -> Generator[RunningServer]:
    """Starts a server; stops it at the end of the `with` block.

    Args:
      wait: whether to wait until all programs are compiled.
    """
    state = ServerState(ServedModels(models), config)
    server, bound = Server(state, config), bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    if wait:
        state.start()
        assert state.batcher.ready.wait(120), state.batcher.failure
    thread.start()
    while not server.started and thread.is_alive():  # it does not listen yet
        time.sleep(0.01)
    try:
        with httpx2.Client(base_url=url, timeout=60) as client:
            yield RunningServer(server, state, url, client)
    finally:
        server.should_exit = True
        thread.join()
        state.stop()
