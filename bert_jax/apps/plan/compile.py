"""Compiles the train step of a phase with libtpu for a TPU slice, and reads its peak memory.

libtpu contains XLA's compiler for every TPU generation, so no TPU is needed. It reads environment
variables before JAX starts: `compiler_report` runs this module as a subprocess, with the request as
JSON on standard input. Reports are cached under a hash of the lowered program, the slice, and the
versions of JAX and libtpu.
"""

import dataclasses
import gzip
import hashlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.apps.plan.inputs import Inputs
from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.experiment import Experiment
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_write
from bert_jax.parallel import sharding
from bert_jax.parallel.tpu_slices import Slice, find_slice
from bert_jax.train.step import TrainSetup

logger = logging.getLogger(__name__)

LIBTPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
_MAX_PER_DEVICE_BATCH_SIZE = 4096  # more than any BERT phase uses


@dataclass(frozen=True, kw_only=True)
class CompiledEstimate:
    """Holds the compiler's memory analysis of one phase on one slice.

    Attributes:
      out_of_memory: the compiler's message if the program does not fit, else None.
      peak_bytes: the peak memory of one device; valid only if `out_of_memory` is None.
    """

    out_of_memory: str | None
    peak_bytes: int = 0

    def fits(self, usable_bytes: int) -> bool:
        """Returns whether the program fits in `usable_bytes` of a device."""
        return self.out_of_memory is None and self.peak_bytes <= usable_bytes


def compile_phase(
    experiment: Experiment, inputs: Inputs, phase_index: int, tpu_slice: Slice
) -> CompiledEstimate:
    """Compiles the train step for a phase's longest batch and returns the memory that it needs.

    The arguments and errors are as for `compiler_report`.
    """
    report = compiler_report(experiment, inputs, phase_index, tpu_slice)
    return CompiledEstimate(
        out_of_memory=report["out_of_memory"], peak_bytes=report.get("peak_bytes", 0)
    )


def compiler_report(
    experiment: Experiment,
    inputs: Inputs,
    phase_index: int,
    tpu_slice: Slice,
) -> dict[str, Any]:
    """Compiles the train step for a phase's longest batch, or reads the cached report.

    Args:
      experiment: the run's config.
      inputs: the batch fields and shapes of the phase.
      phase_index: the phase's index in `train.phases`.
      tpu_slice: the slice to compile for.

    Returns:
      The report of `compile_report`.

    Raises:
      UserError: libtpu is not installed, or the compiler failed for a reason other than memory.
    """
    cache_folder().mkdir(parents=True, exist_ok=True)
    request = {
        "experiment": to_json(experiment),
        "slice": tpu_slice.name,
        "phase": phase_index,
        "fields": list(inputs.fields),
        "sizes": inputs.shapes[-1],
    }
    report_file = Path(json.loads(run_worker_module("bert_jax.apps.plan.compile", request)))
    return json.loads(gzip.decompress(report_file.read_bytes()))


def largest_batch(
    experiment: Experiment,
    inputs: Inputs,
    phase_index: int,
    tpu_slice: Slice,
    usable_bytes: int,
    *,
    compile_fn: Callable[..., CompiledEstimate] = compile_phase,
) -> int:
    """Finds the largest global batch size that fits; 0 if not even one example per device does.

    The batch size per device is doubled up to 4,096 until it does not fit, then bisected. Each
    compilation takes minutes and is logged.

    Args:
      experiment: the run's config.
      inputs: the inputs of the phase.
      phase_index: the phase's index in `train.phases`.
      tpu_slice: the slice to compile for.
      usable_bytes: the bytes of a device that a run may use.
      compile_fn: compiles a phase; tests replace it.
    """
    data, fsdp, _ = experiment.mesh.axis_sizes(tpu_slice.devices)
    batch_size_multiple = data * fsdp * inputs.phase.gradient_accumulation_steps

    def fits(per_device_batch_size: int) -> bool:
        batch_size = per_device_batch_size * batch_size_multiple
        phases = list(experiment.train.phases)
        phases[phase_index] = dataclasses.replace(inputs.phase, batch_size=batch_size)
        shapes = tuple({**sizes, "B": batch_size} for sizes in inputs.shapes)
        resized = dataclasses.replace(inputs, phase=phases[phase_index], shapes=shapes)
        train = dataclasses.replace(experiment.train, phases=tuple(phases))
        candidate = dataclasses.replace(experiment, train=train)
        estimate = compile_fn(candidate, resized, phase_index, tpu_slice)
        logger.info(
            "batch size %s (%d per device) %s: %s",
            f"{batch_size:,}",
            per_device_batch_size,
            "fits" if estimate.fits(usable_bytes) else "does not fit",
            estimate.out_of_memory
            or f"{estimate.peak_bytes / 2**30:.2f} of {usable_bytes / 2**30:.2f} GiB",
        )
        return estimate.fits(usable_bytes)

    low, high = 0, 1
    while low < _MAX_PER_DEVICE_BATCH_SIZE and fits(high):
        low, high = high, 2 * high
    high = min(high, _MAX_PER_DEVICE_BATCH_SIZE + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * batch_size_multiple


def compiler_versions() -> str:
    """Returns the versions of libtpu and JAX, as in "libtpu 0.0.42.1, jax 0.10.2"."""
    return ", ".join(f"{name} {metadata.version(name)}" for name in ("libtpu", "jax"))


def cache_folder() -> Path:
    """Returns the folder of cached results, in XDG_CACHE_HOME or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "bert_jax" / "plan"


def run_worker_module(module: str, request: dict[str, Any]) -> str:
    """Runs a worker module that uses libtpu and returns its output, JSON."""
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            "--compile needs libtpu, XLA's compiler for TPUs (no TPU is needed); install it with: "
            "pip install 'bert_jax[tpu]' (Linux on x86)"
        )
    return run_worker([sys.executable, "-m", module], request)


def run_worker(
    command: Sequence[str], request: dict[str, Any], environment: Mapping[str, str] | None = None
) -> str:
    """Runs a subprocess that compiles with libtpu, and returns the content of its output file.

    The request goes to its standard input as JSON.

    Args:
      command: the command of the subprocess.
      request: {"slice", ...}; the key "output", the path of the output file, is added.
      environment: variables to set in addition to this process's and `LIBTPU_ENVIRONMENT`.

    Raises:
      UserError: the subprocess failed; the message has the last error that it printed.
    """
    with tempfile.TemporaryDirectory(prefix="bert-jax-plan-") as folder:
        output_file = Path(folder) / "output"
        process = subprocess.run(
            command,
            input=json.dumps({**request, "output": str(output_file)}),
            capture_output=True,
            text=True,
            env={**os.environ, **LIBTPU_ENVIRONMENT, **(environment or {})},
            check=False,
        )
        if process.returncode:
            error_lines = [line for line in process.stderr.splitlines() if "Error" in line]
            if process.returncode < 0:
                error_lines = [
                    f"the subprocess was killed by signal {-process.returncode}, often for lack of "
                    "memory on this machine"
                ]
            reason = error_lines[-1] if error_lines else f"exit status {process.returncode}"
            raise UserError(f"the compiler failed for {request['slice']}: {reason}")
        return output_file.read_text(encoding="utf-8")


def topology(tpu_slice: Slice) -> Any:
    """Returns libtpu's description of the devices of a slice."""
    from jax.experimental import topologies

    config = tpu_slice.generation.chip_config
    options = {"chip_config_name": config} if config else {}
    return topologies.get_topology_desc(
        platform="tpu", topology_name=tpu_slice.libtpu_topology, **options
    )


def lower(experiment: Experiment, request: dict[str, Any], devices: Any) -> Any:
    """Lowers the train step of one phase and batch shape for the given devices."""
    mesh = sharding.make_mesh(experiment.mesh, devices)
    phase = experiment.train.phases[request["phase"]]
    with jax.set_mesh(mesh):
        setup = TrainSetup.from_experiment(experiment, mesh)
        return setup.lower_step(phase, tuple(request["fields"]), request["sizes"])


def compile_report(lowered: Any) -> dict[str, Any]:
    """Compiles a lowered train step and reports its memory, cost, and scheduled program.

    Returns:
      {"out_of_memory": the compiler's message} if it does not fit, else {"out_of_memory": None,
      "peak_bytes": the peak memory of one device, "optimal_seconds": from XLA's cost analysis,
      "text": the scheduled program}. The times are estimated from the last two by
      `bench/tpu_estimate.py`.
    """
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if OUT_OF_MEMORY not in str(error):
            raise
        return {"out_of_memory": _memory_line(str(error))}
    analysis = compiled.cost_analysis()
    return {
        "out_of_memory": None,
        "peak_bytes": compiled.memory_analysis().peak_memory_in_bytes,
        "optimal_seconds": analysis.get("optimal_seconds", 0.0),
        "text": compiled.as_text(),
    }


def _memory_line(message: str) -> str:
    """Returns the line of the compiler's message that says by how much memory is exceeded."""
    lines = [line.strip() for line in message.splitlines() if "exceed" in line or "Ran out" in line]
    return lines[0] if lines else message.splitlines()[0]


def main() -> int:
    """Reads the request, compiles unless the report is cached, and writes the report's path.

    The report holds the whole text of the program, so that a change in how the text is read does
    not require a new compilation.
    """
    request = json.load(sys.stdin)
    experiment = from_json(Experiment, request["experiment"], "the request")
    tpu_slice = find_slice(request["slice"])
    devices = topology(tpu_slice).devices
    if len(devices) != tpu_slice.devices:
        raise RuntimeError(f"libtpu has {len(devices)} devices for {tpu_slice.name}")
    lowered = lower(experiment, request, np.asarray(devices).reshape(-1).tolist())
    identity = json.dumps([lowered.as_text(), tpu_slice.name, compiler_versions()])
    name = hashlib.sha256(identity.encode()).hexdigest()[:24]
    report_file = cache_folder() / f"{name}.json.gz"
    if not report_file.exists():
        atomic_write(report_file, gzip.compress(json.dumps(compile_report(lowered)).encode()))
    Path(request["output"]).write_text(json.dumps(str(report_file)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
