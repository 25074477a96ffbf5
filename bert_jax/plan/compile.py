"""A phase's train step compiled by libtpu for a slice, in processes of its own; and what was kept.

Results are kept under the fingerprint of the lowered program, the slice and the versions of JAX and
libtpu. `compiled.py` makes times of them.
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

from bert_jax.aside import write_aside
from bert_jax.config import to_json
from bert_jax.errors import UserError
from bert_jax.experiment import Experiment
from bert_jax.models import attention_kernel, dropout
from bert_jax.plan import kernel_schedule
from bert_jax.plan.compiled import Compiled, estimate
from bert_jax.plan.hlo import read_costs
from bert_jax.plan.inputs import Inputs
from bert_jax.plan.slices import Slice
from bert_jax.plan.state import state_bytes
from bert_jax.plan.timing import model_flops

ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}


def compile_phase(
    experiment: Experiment, inputs: Inputs, phase: int, where: Slice, cache: Path | None = None
) -> Compiled:
    """Compiles the longest batch of a phase for a slice, or reads what was compiled before.

    Raises:
      UserError: libtpu is not installed, or the compiler failed for another reason than memory.
    """
    cache = cache or cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    request = {
        "experiment": to_json(experiment),
        "slice": where.name,
        "phase": phase,
        "fields": list(inputs.fields),
        "sizes": inputs.shapes[-1],
        "cache": str(cache),
    }
    file = Path(json.loads(ask("bert_jax.plan.aot", request)))
    facts = json.loads(gzip.decompress(file.read_bytes()))
    kernels = (0.0, 0.0)
    if facts["out_of_memory"] is None and (runs := _runs(facts["text"])) != (0, 0):
        kernels = _attention_seconds(experiment, inputs, where, runs, cache)
    lowest = state_bytes(experiment, where.devices).lowest
    flops = model_flops(experiment, inputs, inputs.shapes[-1], lowest)
    return estimate(facts, where, flops, kernels=kernels)


def compiler_versions() -> str:
    """As "libtpu 0.0.42.1, jax 0.10.2"."""
    return ", ".join(f"{name} {metadata.version(name)}" for name in ("libtpu", "jax"))


def cache_folder() -> Path:
    """Where compiled results are kept: below XDG_CACHE_HOME, or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "bert_jax" / "plan"


def _runs(text: str) -> tuple[int, int]:
    """How often a program runs the attention kernel, forward and backward."""
    kernels = read_costs(text).kernels.items()
    names = (attention_kernel.FORWARD, attention_kernel.BACKWARD)
    forward, backward = (sum(n for label, n in kernels if name in label) for name in names)
    return forward, backward


def _attention_seconds(
    experiment: Experiment, inputs: Inputs, where: Slice, runs: tuple[int, int], cache: Path
) -> tuple[float, float]:
    """(by schedule, by roofline) of all attention kernels of a step on one device."""
    program, generation = experiment.program, where.generation
    model, length = program.model, inputs.shapes[-1]["L"]
    request = {
        "slice": where.name,
        "length": length,
        "width": model.hidden_size,
        "heads": model.num_attention_heads,
        "rate": model.attention_dropout,
        "dtype": attention_kernel.operand_dtype(program.compute.dtype, generation.device_kind),
    }
    sources = [inspect.getsource(each) for each in (attention_kernel, dropout, kernel_schedule)]
    identity = json.dumps([request, sources, compiler_versions()])
    kept = cache / f"attention-{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json"
    if not kept.exists():
        write_aside(kept, ask("bert_jax.plan.kernel_schedule", request))
    bundles = json.loads(kept.read_text(encoding="utf-8"))
    forward, backward = runs
    data, fsdp, _ = experiment.mesh.sizes(where.devices)
    rows = inputs.texts // (inputs.phase.accumulate * data * fsdp)
    # A device of two cores that are one to JAX (megacore) shares the grid out between them.
    programs = rows * (model.hidden_size // attention_kernel.LANES) / generation.cores_per_device
    cycles = programs * (forward * bundles["forward"] + backward * bundles["backward"])
    # Forward 2 products of 2 L^2 D, backward 5; 4 arrays [L, D] are moved forward, 8 backward.
    flops = rows * (4 * forward + 10 * backward) * length**2 * model.hidden_size
    size = 2 if request["dtype"] == "bfloat16" else 4
    moved = rows * (4 * forward + 8 * backward) * length * model.hidden_size * size
    waiting = moved / generation.device_bandwidth
    return max(cycles / generation.clock_hz, waiting), max(flops / generation.device_flops, waiting)


def ask(module: str, request: dict[str, Any]) -> str:
    """Runs one of the processes that use libtpu; returns its answer, JSON."""
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            "--compile needs libtpu, which has XLA's compiler for TPUs and needs no TPU: "
            "pip install 'bert_jax[tpu]' (Linux on x86)"
        )
    return answer_of([sys.executable, "-m", module], request)


def answer_of(
    command: Sequence[str], request: dict[str, Any], environment: Mapping[str, str] | None = None
) -> str:
    """Runs a process that compiles with libtpu: a request on standard input, a file for its answer.

    Args:
      request: {"slice", ...}; "answer", the file, is added.
      environment: of the process, beside this one's and `ENVIRONMENT`.

    Raises:
      UserError: it failed; with the last error of what it said.
    """
    with tempfile.TemporaryDirectory(prefix="bert-jax-plan-") as folder:
        answer = Path(folder) / "answer"
        done = subprocess.run(
            command,
            input=json.dumps({**request, "answer": str(answer)}),
            capture_output=True,
            text=True,
            env={**os.environ, **ENVIRONMENT, **(environment or {})},
            check=False,
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "Error" in line]
            if done.returncode < 0:
                said = [f"ended by signal {-done.returncode}; is this machine's memory enough?"]
            what = said[-1] if said else f"exit status {done.returncode}"
            raise UserError(f"the compiler failed for {request['slice']}: {what}")
        return answer.read_text(encoding="utf-8")
