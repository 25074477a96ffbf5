"""Runs a server until SIGTERM or SIGINT: binds the port, compiles, serves, drains."""

import contextlib
import errno
import logging
import signal
import socket
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import uvicorn

from bert_jax.apps.serve.app import create_app
from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.served_models import ServedModel, ServedModels, serve_model
from bert_jax.apps.serve.server_state import ServerState
from bert_jax.apps.serve.shipped import OnnxBackend, is_bundle, read_bundle
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.onnx.write import OnnxPrecision
from bert_jax.pretrained.folder import resolve_model_folder
from bert_jax.pretrained.load import load_encoder

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
CACHE_FOLDER = Path("~/.cache/bert_jax")
"""Holds the compilation cache of servers."""


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound to a port; 0 is any free one.

    Raises:
      UserError: the port is in use, or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    # Otherwise a server that is started again would wait until the kernel forgets the connections
    # of the one before.
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except (OSError, OverflowError) as error:
        found.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise UserError(
                f"port {port} of {host} is in use by another program; stop it, or choose another "
                "port with --port (0 for any free one)"
            ) from None
        raise UserError(
            f"--host {host} --port {port}: {error}; expected an address of this machine, such as "
            "127.0.0.1, and a port up to 65535"
        ) from None
    return found


class Server(uvicorn.Server):
    """Runs the application; a signal stops it, after which the process exits with 0."""

    def __init__(self, state: ServerState, config: ServerConfig):
        """Makes the application of `state`."""
        super().__init__(
            uvicorn.Config(
                create_app(state),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=max(1, round(config.shutdown_seconds)),
            )
        )
        self._state = state

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Stops the server on a signal.

        uvicorn's method raises the signal again after the shutdown, so that the process would not
        exit with 0.
        """
        # Python allows signal handlers on the main thread only.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: object) -> None:
        # A second signal ends the server without waiting for requests.
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answers the accepted requests, and refuses others."""
        logger.info("stopping: answering the requests that were accepted")
        self._state.is_stopping = True
        await super().shutdown(sockets)


def run_server(models: ServedModels, config: ServerConfig, bound: socket.socket) -> None:
    """Serves until a signal.

    Raises:
      UserError: the first programs could not be compiled.
    """
    state = ServerState(models, config)
    server = Server(state, config)
    host, port = bound.getsockname()[:2]
    # The port is bound before the programs are compiled, so that /health can say that the server
    # is not ready yet.
    logger.info("listening on http://%s:%d; compiling", host, port)
    state.start()
    announce = threading.Thread(target=_announce, args=(state, server, host, port), daemon=True)
    announce.start()
    try:
        server.run(sockets=[bound])
    finally:
        state.stop()
    if (failure := state.batcher.failure) is not None:
        raise failure


def _announce(state: ServerState, server: Server, host: str, port: int) -> None:
    """Logs that the server is ready; stops it if its first programs cannot be compiled."""
    # The device thread may be ready before the event loop listens.
    while not (state.batcher.ready.wait(0.2) and server.started):
        if state.batcher.failure is not None:
            server.should_exit = True
            return
        if server.should_exit:
            return
        time.sleep(0.01)
    names = ", ".join(model.name for model in state.models)
    logger.info("ready: http://%s:%d serves %s", host, port, names)


def load_models(
    models: Sequence[str],
    adapters: Sequence[str],
    config: ServerConfig,
    onnx: OnnxPrecision | None = None,
) -> ServedModels:
    """Loads the models of a command line.

    Args:
      models: MODEL or NAME=MODEL; the default name is the folder's. A bundle is served
        with its own programs.
      adapters: ADAPTER=FOLDER, or NAME:ADAPTER=FOLDER if there are several models.
      onnx: the ONNX files of the folders that onnxruntime runs; None for JAX.

    Raises:
      ConfigError: an argument has another form, or names a model that is not there; or the
        maximum length is above every model's.
      UserError: a model or an adapter cannot be read.
    """
    folders: dict[str, str] = {}
    for argument in models:
        name, separator, path = argument.partition("=")
        if not separator or "/" in name:
            name, path = Path(argument).resolve().name, argument
        if name in folders:
            raise ConfigError(
                f"two models are called {name!r}; name them apart, as in {name}-2={path}"
            )
        folders[name] = path
    of_model: dict[str, dict[str, str]] = {name: {} for name in folders}
    for argument in adapters:
        name, separator, path = argument.partition("=")
        base, has_base, adapter = name.rpartition(":")
        base = base if has_base else next(iter(folders))
        is_ambiguous = not has_base and len(folders) > 1
        if not separator or not adapter or is_ambiguous or base not in folders:
            raise ConfigError(
                f"--adapter {argument}: expected NAME=FOLDER, or MODEL:NAME=FOLDER with one of "
                f"the models {', '.join(folders)}"
            )
        of_model[base][adapter] = path
    served = [
        each
        for name, path in folders.items()
        for each in _serve_folder(name, path, config, of_model[name], onnx)
    ]
    longest = max(model.max_length for model in served)
    if config.max_length is not None and config.max_length > longest:
        raise ConfigError(
            f"--max-length is {config.max_length}; the models take sequences of at most {longest} "
            "tokens: choose a shorter length, or leave it out"
        )
    return ServedModels(served)


def _serve_folder(
    name: str,
    path: str,
    config: ServerConfig,
    adapters: dict[str, str],
    onnx: OnnxPrecision | None,
) -> list[ServedModel]:
    folder = resolve_model_folder(path)
    if is_bundle(folder):
        if onnx:
            raise ConfigError(
                f"{path} is a bundle, which has no ONNX files; leave out --onnx, or serve it alone"
            )
        model, backend = read_bundle(folder)
        return serve_model(name, model, config, adapters, backend)
    model = load_encoder(folder)
    return serve_model(name, model, config, adapters, OnnxBackend(model, onnx) if onnx else None)
