"""A phase's train step compiled by libtpu for a slice: memory, verdict, two estimates of time.

Nothing here was ever run on a TPU: these are estimates, and called so everywhere. Two stand beside
each other, because they err differently.

- By schedule: the compiler's cycles for each operation, as often as its loops run it; for
  attention kernels the bundles that it has scheduled (`kernel_schedule.py`); for random bits and
  what it is silent about, their bytes over the memory's bandwidth.
- By roofline: each operation takes what its FLOPs or its bytes need at the least (XLA's
  `optimal_seconds`), kernels likewise. It counts copies to and from on-chip memory several times,
  which is taken off (`CHARGED`), and the body of a loop once: for unrolled layers and whole batches
  only.

To both are added the collectives, one after another with the rest: their bytes over the links of a
corner chip (`timing.py`). Results are kept under the fingerprint of the lowered program, the slice
and the versions of JAX and libtpu.
"""

import hashlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from bert_jax.aside import write_aside
from bert_jax.config import to_json
from bert_jax.errors import UserError
from bert_jax.experiment import Experiment
from bert_jax.models import attention_kernel, dropout
from bert_jax.models.config import FusedAttention
from bert_jax.plan.inputs import Inputs
from bert_jax.plan.slices import Slice
from bert_jax.plan.timing import link_axes
from bert_jax.train.flops import step_flops

ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}
# Bytes that cross a chip's edge, as a multiple of those of the collective's result.
_CROSSING = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0}
CHARGED = {"copy": 4, "slice": 3}
"""How often XLA's `optimal_seconds` counts the bytes of a copy to or from on-chip memory."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What the compiler says of one phase on one slice. Times are estimates, in seconds of a step.

    Attributes:
      out_of_memory: the compiler's own message, or None if it fits; then the rest counts.
      peak_bytes: on one device.
      schedule, roofline: time of the operations; roofline is None if layers or microbatches are
        a loop.
      kernels: of that, in kernels, by their schedule.
      links: of the collectives.
      collectives: kind -> [how many, bytes].
      flops: by formula, of one device, for the share of the peak.
      peak_flops: of one device.
    """

    out_of_memory: str | None
    peak_bytes: int = 0
    schedule: float = 0.0
    roofline: float | None = None
    kernels: float = 0.0
    links: float = 0.0
    collectives: dict[str, list[float]] | None = None
    flops: float = 0.0
    peak_flops: float = 1.0

    @property
    def seconds(self) -> dict[str, float]:
        """A whole step by each estimate, all costs counted."""
        both = {"schedule": self.schedule, "roofline": self.roofline}
        return {name: time + self.links for name, time in both.items() if time is not None}

    @property
    def mfu(self) -> dict[str, float]:
        """The share of the chips' peak that each estimate comes to."""
        return {name: self.flops / (time * self.peak_flops) for name, time in self.seconds.items()}


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
    facts = json.loads(ask("bert_jax.plan.aot", request))
    kernels = (0.0, 0.0)
    if not facts["out_of_memory"] and facts["costs"]["kernels"]:
        kernels = _attention_seconds(experiment, inputs, where, cache)
    flops = step_flops(experiment.program, inputs.phase, inputs.shapes[-1]["L"])
    return estimate(facts, where, flops, kernels=kernels)


def estimate(
    facts: dict[str, Any],
    where: Slice,
    flops: float,
    *,
    kernels: tuple[float, float] = (0.0, 0.0),
) -> Compiled:
    """Times from what `aot.facts` tells of a compiled step.

    Args:
      flops: of the model in a step, over all devices.
      kernels: seconds of attention kernels on one device, by schedule and by roofline.

    A program with a loop has no roofline: XLA's analysis counts what is in it once.
    """
    if facts["out_of_memory"]:
        return Compiled(out_of_memory=facts["out_of_memory"])
    generation, costs = where.generation, facts["costs"]
    bandwidth = generation.device_bandwidth
    silent = costs["random_bytes"] + sum(size for _, size in costs["unknown"].values())
    schedule = costs["cycles"] / generation.clock_hz + silent / bandwidth
    surplus = sum((CHARGED[kind] - 1) * size for kind, (_, size) in costs["copies"].items())
    roofline = facts["roofline_seconds"] - surplus / bandwidth + kernels[1]
    return Compiled(
        out_of_memory=None,
        peak_bytes=facts["peak_bytes"],
        schedule=schedule + kernels[0],
        roofline=None if costs["loops"] else roofline,
        kernels=kernels[0],
        links=_link_seconds(costs["collectives"], where),
        collectives=costs["collectives"],
        flops=flops / where.devices,
        peak_flops=generation.device_flops,
    )


def compiler_versions() -> str:
    """As "libtpu 0.0.42.1, jax 0.10.2"."""
    return ", ".join(f"{name} {metadata.version(name)}" for name in ("libtpu", "jax"))


def cache_folder() -> Path:
    """Where compiled results are kept: below XDG_CACHE_HOME, or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "bert_jax" / "plan"


def _attention_seconds(
    experiment: Experiment, inputs: Inputs, where: Slice, cache: Path
) -> tuple[float, float]:
    """(by schedule, by roofline) of all attention kernels of a step on one device."""
    program, generation = experiment.program, where.generation
    model, length = program.model, inputs.shapes[-1]["L"]
    assert isinstance(program.compute.attention, FusedAttention)
    assert attention_kernel.fits(length, model.hidden_size, model.num_attention_heads)
    request = {
        "slice": where.name,
        "length": length,
        "width": model.hidden_size,
        "heads": model.num_attention_heads,
        "rate": model.attention_dropout,
        "dtype": attention_kernel.operand_dtype(program.compute.dtype, generation.device_kind),
    }
    sources = [inspect.getsource(each) for each in (attention_kernel, dropout)]
    identity = json.dumps([request, sources, compiler_versions()])
    kept = cache / f"attention-{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json"
    if not kept.exists():
        write_aside(kept, ask("bert_jax.plan.kernel_schedule", request))
    bundles = json.loads(kept.read_text(encoding="utf-8"))
    data, fsdp, _ = experiment.mesh.sizes(where.devices)
    rows = inputs.texts // (data * fsdp)
    layers = model.num_hidden_layers
    # A device of two cores that are one to JAX (megacore) shares the grid out between them.
    programs = (
        rows * (model.hidden_size // attention_kernel.LANES) * layers / generation.cores_per_device
    )
    schedule = programs * (bundles["forward"] + bundles["backward"]) / generation.clock_hz
    # Forward 2 products of 2 L^2 D, backward 5; 4 arrays [L, D] are moved forward, 7 backward.
    flops = rows * layers * 14 * length**2 * model.hidden_size
    size = 2 if request["dtype"] == "bfloat16" else 4
    moved = rows * layers * 11 * length * model.hidden_size * size
    peak = generation.device_flops
    bandwidth = generation.device_bandwidth
    return max(schedule, moved / bandwidth), max(flops / peak, moved / bandwidth)


def _link_seconds(collectives: dict[str, list[float]], where: Slice) -> float:
    """All collectives one after another, over the links of a corner chip."""
    share = (where.chips - 1) / where.chips
    crossing = sum(
        _CROSSING.get(kind, 1.0) * share * size for kind, (_, size) in collectives.items()
    )
    return crossing / (link_axes(where) * where.generation.link_bytes_per_second)


def ask(module: str, request: dict[str, Any]) -> str:
    """Runs one of the processes that use libtpu; returns its answer, JSON."""
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            "--compile needs libtpu, which has XLA's compiler for TPUs and needs no TPU: "
            "pip install 'bert_jax[tpu]' (Linux on x86)"
        )
    with tempfile.TemporaryDirectory(prefix="bert-jax-plan-") as folder:
        answer = Path(folder) / "answer"
        done = subprocess.run(
            [sys.executable, "-m", module],
            input=json.dumps({**request, "answer": str(answer)}),
            capture_output=True,
            text=True,
            env={**os.environ, **ENVIRONMENT},
            check=False,
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "Error" in line]
            if done.returncode < 0:
                said = [f"ended by signal {-done.returncode}; is this machine's memory enough?"]
            what = said[-1] if said else f"exit status {done.returncode}"
            raise UserError(f"the compiler failed for {request['slice']}: {what}")
        return answer.read_text(encoding="utf-8")
