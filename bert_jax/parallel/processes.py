"""Initializes JAX for a run of several processes, and runs functions on process 0 for all of them.

With one process nothing of this is needed. On TPU pods `coordinator="auto"` lets JAX find the other
hosts; elsewhere every process gets the address of the coordinator as an argument or environment
variable, and before JAX starts, the processes check that all are running (`rendezvous.py`).
"""

import json
import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from bert_jax.errors import UserError
from bert_jax.parallel import rendezvous

T = TypeVar("T")

logger = logging.getLogger(__name__)

COORDINATOR = "BERT_JAX_COORDINATOR"
NUM_PROCESSES = "BERT_JAX_NUM_PROCESSES"
PROCESS_ID = "BERT_JAX_PROCESS_ID"
LOCAL_DEVICES = "BERT_JAX_LOCAL_DEVICES"
HEARTBEAT = "BERT_JAX_HEARTBEAT_SECONDS"


@dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """Configures how a process joins the others of a run.

    Attributes:
      coordinator: HOST:PORT of process 0, "auto" (a TPU pod, or a cluster that JAX recognizes), or
        None (a single process).
      local_devices: number of CPU devices to simulate; None: JAX's default.
      heartbeat_seconds: time after which the other processes stop when one has died.
    """

    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    local_devices: int | None = None
    heartbeat_seconds: int = 100


def config_from_environment(
    *,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_devices: int | None = None,
    heartbeat_seconds: int | None = None,
) -> DistributedConfig:
    """Returns the config from the arguments; those that are None come from BERT_JAX_* variables.

    Raises:
      UserError: a variable is not a number, or a coordinator is set without the process id and the
        number of processes.
    """
    config = DistributedConfig(
        coordinator=coordinator or os.environ.get(COORDINATOR) or None,
        num_processes=_int_from_environment(num_processes, NUM_PROCESSES),
        process_id=_int_from_environment(process_id, PROCESS_ID),
        local_devices=_int_from_environment(local_devices, LOCAL_DEVICES),
        heartbeat_seconds=_int_from_environment(heartbeat_seconds, HEARTBEAT) or 100,
    )
    _validate_config(config)
    return config


def _int_from_environment(value: int | None, variable: str) -> int | None:
    if value is not None or not os.environ.get(variable):
        return value
    text = os.environ[variable]
    if not text.isdigit():
        raise UserError(f"{variable}={text!r}: expected a whole number, as in {variable}=2")
    return int(text)


def _validate_config(config: DistributedConfig) -> None:
    num_processes, process_id = config.num_processes, config.process_id
    if config.coordinator == "auto":
        return
    if config.coordinator is None:
        if (num_processes or 1) > 1:
            raise UserError(
                f"{num_processes} processes, but no coordinator; set {COORDINATOR} to HOST:PORT of "
                "process 0"
            )
        return
    if ":" not in config.coordinator:
        raise UserError(f"coordinator {config.coordinator!r}: expected HOST:PORT, or auto")
    if num_processes is None or process_id is None:
        raise UserError(
            f"coordinator {config.coordinator!r} also needs the number of processes "
            f"({NUM_PROCESSES}) and the id of this process ({PROCESS_ID})"
        )
    if not 0 <= process_id < num_processes:
        raise UserError(
            f"process id {process_id}: expected 0 to {num_processes - 1} "
            f"with {num_processes} processes"
        )


def initialize(config: DistributedConfig) -> None:
    """Connects this process to the others; call it before anything uses JAX's devices.

    Does nothing for a single process, except to set the number of CPU devices.

    Raises:
      UserError: another process is missing, cannot be reached, or has other versions or settings;
        the message names it.
    """
    if config.local_devices is not None:
        jax.config.update("jax_num_cpu_devices", config.local_devices)
    if config.coordinator is None:
        return
    # For CPUs only; on TPUs and GPUs the setting has no effect.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    num_processes, process_id = config.num_processes, config.process_id
    if config.coordinator == "auto":
        initialize_args, process_name = (None, None, None), "this process"
        # If one is missing, JAX aborts: this line is then the last one that says why.
        seconds = rendezvous.timeout_seconds()
        logger.info("waiting up to %g s for the processes of the other hosts", seconds)
    else:
        assert num_processes is not None and process_id is not None
        initialize_args = (config.coordinator, num_processes, process_id)
        process_name = f"process {process_id} of {num_processes}"
        if num_processes > 1:
            # Checked before JAX starts: when it finds a missing process, it aborts the others
            # with a C++ stack trace that Python cannot catch.
            settings: dict[str, Any] = {"number of devices": config.local_devices}
            settings |= rendezvous.package_versions()
            rendezvous.wait_for_all_processes(
                config.coordinator, process_id, num_processes, settings
            )
    try:
        jax.distributed.initialize(
            *initialize_args,
            initialization_timeout=math.ceil(rendezvous.timeout_seconds()),
            # When a process is killed, the others hang in a collective until the heartbeat fails
            # and JAX aborts them (measured: 98 s of the default 100).
            heartbeat_timeout_seconds=config.heartbeat_seconds,
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"{process_name} could not join {config.coordinator}: {str(error).splitlines()[0]}"
        ) from error
    for handler in logging.getLogger("bert_jax").handlers:
        handler.setFormatter(_ProcessFormatter())


class _ProcessFormatter(logging.Formatter):
    """Prefixes log lines with the process id, because all processes may share one terminal."""

    def format(self, record: logging.LogRecord) -> str:
        message = super().format(record)
        # Asked only when a line is logged, because it starts the devices.
        if jax.process_count() == 1:
            return message
        return f"process {jax.process_index()} of {jax.process_count()}: {message}"


def barrier(name: str, *, timeout_seconds: float = 3600) -> None:
    """Waits until every process has called this with the same `name`; use each name once.

    Without it a process that compiles faster than the others would start a collective alone, and
    collectives time out after 30 seconds.

    Raises:
      UserError: some processes did not arrive in time; the message names them.
    """
    if jax.process_count() == 1:
        return
    try:
        multihost.get_barrier_sync_fn()(
            key=f"bert_jax {name}", timeout_ms=round(timeout_seconds * 1000)
        )
    except jax.errors.JaxRuntimeError as error:
        # The names of missing processes are in JAX's message only, not in a field of the error.
        _, _, timed_out = str(error).partition("timed out task names:")
        missing = [int(line) for line in timed_out.splitlines() if line.strip().isdigit()]
        missing_text = (
            rendezvous.format_processes(sorted(missing))
            if missing
            else f"a process ({str(error).splitlines()[0]})"
        )
        raise UserError(
            f"{missing_text} did not reach {name} within {timeout_seconds:g} s; "
            "look at the end of its log"
        ) from None


def run_on_process_0(function: Callable[[], T]) -> T:
    """Runs `function` on process 0 and returns its result, a JSON value, on every process.

    An exception on process 0 is raised on the other processes as a UserError, so that they do not
    wait for process 0.
    """
    if jax.process_count() == 1:
        return function()
    # The length is broadcast first, because a broadcast needs arrays of the same shape on all
    # processes.
    payload: dict[str, Any] = {}
    failure: Exception | None = None
    if jax.process_index() == 0:
        try:
            payload = {"result": function()}
        except Exception as error:  # every kind of error must reach the other processes
            failure, payload = error, {"error": str(error) or repr(error)}
    encoded = np.frombuffer(json.dumps(payload).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(encoded.size)))
    padded = np.zeros(size, np.uint8)
    padded[: min(size, encoded.size)] = encoded[:size]
    received = json.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes())
    if failure is not None:
        raise failure
    if "error" in received:
        raise UserError(received["error"])
    return received["result"]
