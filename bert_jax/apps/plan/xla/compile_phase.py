"""Compiles the train step of a phase with libtpu for a TPU slice, in a subprocess, and caches it.

The cache key is a hash of the lowered program, the slice, and the versions of JAX and libtpu.
`compile_report.py` turns the compiler's report into times.
"""

import gzip
import hashlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bert_jax.apps.plan.inputs import Inputs
from bert_jax.apps.plan.state_bytes import state_bytes
from bert_jax.apps.plan.timing import model_flops
from bert_jax.apps.plan.xla import kernel_schedule
from bert_jax.apps.plan.xla.compile_report import CompiledEstimate, estimate_compiled
from bert_jax.apps.plan.xla.hlo import read_costs
from bert_jax.config.config_lib import to_json
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Seq2Seq
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_write
from bert_jax.models.layers import dropout, pallas_attention, pallas_attention_kernels
from bert_jax.parallel.tpu_slices import Slice

LIBTPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}


def compile_phase(
    experiment: Experiment,
    inputs: Inputs,
    phase_index: int,
    tpu_slice: Slice,
    cache: Path | None = None,
) -> CompiledEstimate:
    """Compiles the train step for a phase's longest batch, or reads the cached result.

    Args:
      experiment: the run's config.
      inputs: the batch fields and shapes of the phase.
      phase_index: the phase's index in `train.phases`.
      tpu_slice: the slice to compile for.
      cache: the folder of cached results (default: `cache_folder()`).

    Raises:
      UserError: libtpu is not installed, or the compiler failed for a reason other than memory.
    """
    cache = cache or cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    request = {
        "experiment": to_json(experiment),
        "slice": tpu_slice.name,
        "phase": phase_index,
        "fields": list(inputs.fields),
        "sizes": inputs.shapes[-1],
        "cache": str(cache),
    }
    report_file = Path(
        json.loads(run_worker_module("bert_jax.apps.plan.xla.compile_worker", request))
    )
    report = json.loads(gzip.decompress(report_file.read_bytes()))
    kernels = (0.0, 0.0)
    if report["out_of_memory"] is None and (
        kernel_runs := _attention_kernel_runs(report["text"])
    ) != (0, 0):
        kernels = _attention_seconds(experiment, inputs, tpu_slice, kernel_runs, cache)
    lowest_trainable_layer = state_bytes(experiment, tpu_slice.devices).lowest_trainable_layer
    flops = model_flops(experiment, inputs, inputs.shapes[-1], lowest_trainable_layer)
    return estimate_compiled(report, tpu_slice, flops, attention_kernel_seconds=kernels)


def compiler_versions() -> str:
    """Returns the versions of libtpu and JAX, as in "libtpu 0.0.42.1, jax 0.10.2"."""
    return ", ".join(f"{name} {metadata.version(name)}" for name in ("libtpu", "jax"))


def cache_folder() -> Path:
    """Returns the folder of cached results, in XDG_CACHE_HOME or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "bert_jax" / "plan"


def _attention_kernel_runs(text: str) -> tuple[int, int]:
    """Counts the runs of the attention kernel in a compiled program: (forward, backward)."""
    kernels = read_costs(text).kernel_runs.items()
    names = (pallas_attention.FORWARD, pallas_attention.BACKWARD)
    forward, backward = (sum(n for label, n in kernels if name in label) for name in names)
    return forward, backward


def _attention_seconds(
    experiment: Experiment,
    inputs: Inputs,
    tpu_slice: Slice,
    kernel_runs: tuple[int, int],
    cache: Path,
) -> tuple[float, float]:
    """Estimates the seconds of a step's attention kernels on one device: (schedule, roofline)."""
    objective, generation = experiment.objective, tpu_slice.generation
    assert not isinstance(objective, Seq2Seq), "encoder-decoders have no such kernel"
    model, seq_length = objective.model, inputs.shapes[-1]["L"]
    request = {
        "slice": tpu_slice.name,
        "seq_length": seq_length,
        "hidden_size": model.hidden_size,
        "num_heads": model.num_attention_heads,
        "dropout_rate": model.attention_probs_dropout_prob,
        "dtype": pallas_attention.operand_dtype(objective.compute.dtype, generation.device_kind),
    }
    sources = [
        inspect.getsource(each)
        for each in (pallas_attention, pallas_attention_kernels, dropout, kernel_schedule)
    ]
    identity = json.dumps([request, sources, compiler_versions()])
    cache_file = cache / f"attention-{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json"
    if not cache_file.exists():
        atomic_write(
            cache_file, run_worker_module("bert_jax.apps.plan.xla.kernel_schedule", request)
        )
    bundles = json.loads(cache_file.read_text(encoding="utf-8"))
    forward, backward = kernel_runs
    data, fsdp, _ = experiment.mesh.axis_sizes(tpu_slice.devices)
    num_sequences = inputs.num_sequences // (inputs.phase.gradient_accumulation_steps * data * fsdp)
    # A megacore device is one device to JAX, but its two cores split the grid.
    grid_programs = (
        num_sequences * (model.hidden_size // pallas_attention.LANES) / generation.cores_per_device
    )
    cycles = grid_programs * (forward * bundles["forward"] + backward * bundles["backward"])
    # Forward: 2 products of 2 L^2 D FLOPs and 4 arrays [L, D] moved. Backward: 5 and 8.
    flops = num_sequences * (4 * forward + 10 * backward) * seq_length**2 * model.hidden_size
    itemsize = 2 if request["dtype"] == "bfloat16" else 4
    hbm_bytes = (
        num_sequences * (4 * forward + 8 * backward) * seq_length * model.hidden_size * itemsize
    )
    memory_seconds = hbm_bytes / generation.device_bandwidth
    return max(cycles / generation.clock_hz, memory_seconds), max(
        flops / generation.device_flops, memory_seconds
    )


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
