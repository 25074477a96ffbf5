"""Starting several processes as one run, and letting process 0 decide for all of them.

A run of one process needs none of this. On TPU pods `coordinator="auto"` lets JAX find the other
hosts; elsewhere each process is told the coordinator's address, by argument or environment. Before
JAX starts the processes look whether all are there (`rendezvous.py`).
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from bert_jax.errors import UserError
from bert_jax.train import rendezvous, tpu_place
from bert_jax.train.attendance import Report, numbers

T = TypeVar("T")

COORDINATOR = "BERT_JAX_COORDINATOR"
NUM_PROCESSES = "BERT_JAX_NUM_PROCESSES"
PROCESS_ID = "BERT_JAX_PROCESS_ID"
LOCAL_DEVICES = "BERT_JAX_LOCAL_DEVICES"
HEARTBEAT = "BERT_JAX_HEARTBEAT_SECONDS"


@dataclass(frozen=True, kw_only=True)
class Processes:
    """What one process has to know to join the others.

    `coordinator` is HOST:PORT of process 0, "auto" (a TPU pod or a cluster that JAX recognises) or
    None (one process). `local_devices` asks for that many devices on a CPU. `heartbeat_seconds`
    is how long the others wait for a process that has died before they stop too.
    """

    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    local_devices: int | None = None
    heartbeat_seconds: int = 100


def from_environment(
    *,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_devices: int | None = None,
    heartbeat_seconds: int | None = None,
) -> Processes:
    """Arguments where they are given, else the environment variables BERT_JAX_*.

    Raises:
      UserError: a variable that is not a number, or a coordinator without the process numbers.
    """
    processes = Processes(
        coordinator=coordinator or os.environ.get(COORDINATOR) or None,
        num_processes=_number(num_processes, NUM_PROCESSES),
        process_id=_number(process_id, PROCESS_ID),
        local_devices=_number(local_devices, LOCAL_DEVICES),
        heartbeat_seconds=_number(heartbeat_seconds, HEARTBEAT) or 100,
    )
    _validate(processes)
    return processes


def _number(given: int | None, variable: str) -> int | None:
    if given is not None or not os.environ.get(variable):
        return given
    text = os.environ[variable]
    if not text.isdigit():
        raise UserError(f"{variable}={text!r}: expected a whole number, as in {variable}=2")
    return int(text)


def _validate(processes: Processes) -> None:
    count, index = processes.num_processes, processes.process_id
    if processes.coordinator == "auto":
        return
    if processes.coordinator is None:
        if (count or 1) > 1:
            raise UserError(
                f"{count} processes but no coordinator: give HOST:PORT of process 0 ({COORDINATOR})"
            )
        return
    if ":" not in processes.coordinator:
        raise UserError(f"coordinator {processes.coordinator!r}: expected HOST:PORT, or auto")
    if count is None or index is None:
        raise UserError(
            f"coordinator {processes.coordinator!r} also needs the number of processes "
            f"({NUM_PROCESSES}) and the number of this one ({PROCESS_ID})"
        )
    if not 0 <= index < count:
        raise UserError(f"process number {index}: expected 0 to {count - 1} with {count} processes")


def initialize(processes: Processes) -> None:
    """Joins the run; call it before anything asks JAX for its devices. One process: does nothing.

    Raises:
      UserError: another process is missing or does not fit (named), or could not be reached.
    """
    if processes.local_devices is not None:
        jax.config.update("jax_num_cpu_devices", processes.local_devices)
    if processes.coordinator is None:
        return
    _meet(processes)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    told = (processes.coordinator, processes.num_processes, processes.process_id)
    if processes.coordinator == "auto":
        told, this = (None, None, None), "this process"
    else:
        this = f"process {processes.process_id} of {processes.num_processes}"
    try:
        jax.distributed.initialize(*told, heartbeat_timeout_seconds=processes.heartbeat_seconds)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"{this} could not join {processes.coordinator}: {str(error).splitlines()[0]}"
        ) from error


def _meet(processes: Processes) -> None:
    """Sees that all processes are there; on a TPU slice by the numbers in its metadata."""
    coordinator, count = processes.coordinator, processes.num_processes
    index = processes.process_id
    if coordinator == "auto":
        try:
            place = tpu_place.find(os.environ)
        except tpu_place.Unknown as reason:
            say(f"whether all processes are there is left to JAX: {reason}")
            return
        coordinator, index = place.coordinator, place.process_id
        if count not in (None, place.num_processes):
            raise UserError(
                f"{NUM_PROCESSES}={count}, but the metadata of this TPU slice has "
                f"{place.num_processes} hosts; is each host a slice of its own?"
            )
        count = place.num_processes
    assert coordinator is not None and count is not None and index is not None
    if count > 1:
        own = Report(process=index, count=count, local_devices=processes.local_devices)
        rendezvous.meet(coordinator, own)


def say(line: str) -> None:
    """One line on stderr from this process, named where there are several."""
    if jax.distributed.is_initialized() and jax.process_count() > 1:
        line = f"process {jax.process_index()} of {jax.process_count()}: {line}"
    print(line, file=sys.stderr, flush=True)


def together(place: str, *, seconds: float = 3600) -> None:
    """Returns when every process has come to `place`, a name that each comes to once.

    Without it a process that compiles faster than the others would begin to reduce alone, and
    collectives wait for 30 seconds only.

    Raises:
      UserError: some have not come after that long; names them.
    """
    if jax.process_count() == 1:
        return
    try:
        multihost.get_barrier_sync_fn()(key=f"bert_jax {place}", timeout_ms=round(seconds * 1000))
    except jax.errors.JaxRuntimeError as error:
        _, _, absent = str(error).partition("timed out task names:")
        missing = [int(line) for line in absent.splitlines() if line.strip().isdigit()]
        who = numbers(sorted(missing)) if missing else f"a process ({str(error).splitlines()[0]})"
        raise UserError(
            f"{who} did not come to {place} within {seconds:g} s; look at what it said last"
        ) from None


def agree(decide: Callable[[], T]) -> T:
    """Runs `decide` on process 0 and returns its result, a JSON value, on every process.

    What it raises there is raised on the others as a UserError, so that none waits for process 0.
    """
    if jax.process_count() == 1:
        return decide()
    answer: dict[str, Any] = {}
    failure: Exception | None = None
    if jax.process_index() == 0:
        try:
            answer = {"result": decide()}
        except Exception as error:  # whatever it is, the others have to hear of it
            failure, answer = error, {"error": str(error) or repr(error)}
    text = np.frombuffer(json.dumps(answer).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(text.size)))
    padded = np.zeros(size, np.uint8)
    padded[: min(size, text.size)] = text[:size]
    received = json.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes())
    if failure is not None:
        raise failure
    if "error" in received:
        raise UserError(received["error"])
    return received["result"]
