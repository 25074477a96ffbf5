"""Estimates memory and time of a compiled train step on a TPU slice from the compiler's report.

The program is compiled for a TPU, but never run on one. There are two estimates of the time, with
different errors:

- By schedule: the compiler's estimated cycles of each operation times its loop trip count. For
  attention kernels it counts the scheduled bundles (`tpu_kernel_schedule.py`). For random bits and
  operations without an estimate it takes the bytes of their results over the HBM bandwidth.
- By roofline: the minimal time of each operation given its FLOPs and bytes (XLA's
  `optimal_seconds`), likewise for kernels. XLA counts copies to and from on-chip memory several
  times, which is corrected (`COPY_OVERCOUNT`), and the body of a loop once. The estimate is
  therefore only valid for unrolled layers without gradient accumulation.

Both add the time of the collectives without overlap: their bytes over the links of a corner chip
(`timing.py`).
"""

import hashlib
import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench import tpu_kernel_schedule
from bench.tpu_hlo import read_costs
from bert_jax.apps.plan.compile import (
    cache_folder,
    compiler_report,
    compiler_versions,
    run_worker_module,
)
from bert_jax.apps.plan.inputs import Inputs
from bert_jax.apps.plan.memory import state_bytes
from bert_jax.apps.plan.timing import model_flops
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Seq2Seq
from bert_jax.io.atomic_io import atomic_write
from bert_jax.models.layers import dropout, pallas_attention
from bert_jax.parallel.tpu_slices import Slice

COPY_OVERCOUNT = {"copy": 4, "slice": 3}
"""How many times XLA's `optimal_seconds` counts the bytes of a copy to or from on-chip memory."""
# Longer times may include a whole second that is only a marker; see `optimal_seconds`.
_MAX_ROOFLINE_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class CompiledEstimate:
    """Holds the compiler's estimates for one phase on one slice; times are seconds per step.

    Attributes:
      out_of_memory: the compiler's message if the program does not fit, else None. The other
        attributes are valid only if it is None.
      peak_bytes: the peak memory of one device.
      schedule_seconds: the time of the operations by schedule.
      roofline_seconds: the time of the operations by roofline; None if the program has loops or the
        step is too long for this estimate.
      kernel_seconds: the part of `schedule_seconds` spent in kernels.
      collective_seconds: the time of the collectives.
      collectives: {kind: [number of runs, bytes of their results]}.
      flops_per_device: the model FLOPs of one device by formula, used to compute the MFU.
      device_peak_flops: the peak FLOP/s of one device.
    """

    out_of_memory: str | None
    peak_bytes: int = 0
    schedule_seconds: float = 0.0
    roofline_seconds: float | None = None
    kernel_seconds: float = 0.0
    collective_seconds: float = 0.0
    collectives: dict[str, list[float]] | None = None
    flops_per_device: float = 0.0
    device_peak_flops: float = 1.0

    @property
    def seconds(self) -> dict[str, float]:
        """Returns the seconds of a whole step, with collectives, by each available estimate."""
        if self.out_of_memory is not None:
            return {}
        estimates = {"schedule": self.schedule_seconds, "roofline": self.roofline_seconds}
        return {
            name: estimated_seconds + self.collective_seconds
            for name, estimated_seconds in estimates.items()
            if estimated_seconds is not None
        }

    @property
    def mfu(self) -> dict[str, float]:
        """Returns the model FLOPs utilization by each available estimate."""
        return {
            name: self.flops_per_device / (estimated_seconds * self.device_peak_flops)
            for name, estimated_seconds in self.seconds.items()
        }

    def fits(self, usable_bytes: int) -> bool:
        """Returns whether the program fits in `usable_bytes` of a device."""
        return self.out_of_memory is None and self.peak_bytes <= usable_bytes


def estimate_compiled(
    report: Mapping[str, Any],
    tpu_slice: Slice,
    flops: float,
    *,
    attention_kernel_seconds: tuple[float, float] = (0.0, 0.0),
) -> CompiledEstimate:
    """Estimates times from the report of `compile_report`.

    Args:
      report: the compiler's report.
      tpu_slice: the slice that the program was compiled for.
      flops: the model FLOPs of a step over all devices.
      attention_kernel_seconds: seconds of the attention kernels on one device, by schedule and by
        roofline; XLA has no estimate for kernels.

    Raises:
      UserError: the trip count of a loop is unknown.
    """
    if report["out_of_memory"] is not None:
        return CompiledEstimate(out_of_memory=report["out_of_memory"])
    generation, costs = tpu_slice.generation, read_costs(report["text"])
    bandwidth = generation.device_bandwidth
    uncosted_bytes = costs.random_bytes + sum(size for _, size in costs.unknown.values())
    schedule_seconds = (
        costs.cycles / generation.clock_hz
        + uncosted_bytes / bandwidth
        + attention_kernel_seconds[0]
    )
    overcounted_bytes = sum(
        (COPY_OVERCOUNT[kind] - 1) * size for kind, (_, size) in costs.copies.items()
    )
    roofline_seconds = (
        optimal_seconds(report["optimal_seconds"])
        - overcounted_bytes / bandwidth
        + attention_kernel_seconds[1]
    )
    collectives: dict[str, list[float]] = {}
    for (kind, _), row in costs.collectives.items():
        collectives[kind] = [a + b for a, b in zip(collectives.get(kind, [0, 0]), row, strict=True)]
    return CompiledEstimate(
        out_of_memory=None,
        peak_bytes=report["peak_bytes"],
        schedule_seconds=schedule_seconds,
        roofline_seconds=None
        if costs.num_loops or schedule_seconds > _MAX_ROOFLINE_SECONDS
        else roofline_seconds,
        kernel_seconds=attention_kernel_seconds[0],
        collective_seconds=collective_seconds(costs.collectives, tpu_slice),
        collectives=collectives,
        flops_per_device=flops / tpu_slice.devices,
        device_peak_flops=generation.device_flops,
    )


def optimal_seconds(reported_seconds: float) -> float:
    """Returns the fractional part of the `optimal_seconds` of a program's cost analysis.

    XLA subtracts a whole second for every operation of unknown cost, so only the fraction has a
    meaning.
    """
    return reported_seconds - math.floor(reported_seconds)


def collective_seconds(
    collectives: Mapping[tuple[str, tuple[int, ...]], list[float]], tpu_slice: Slice
) -> float:
    """Returns the seconds of all collectives without overlap, over the links of a corner chip.

    Devices of one chip exchange data for free. If they belong to different replica groups, they
    share the chip's links.

    Args:
      collectives: the collectives as in `hlo.HloCosts`.
      tpu_slice: the slice that the program was compiled for.
    """
    devices_per_chip = tpu_slice.generation.devices_per_chip
    link_bytes = 0.0
    for (kind, group), (_, size) in collectives.items():
        devices = group or tuple(range(tpu_slice.devices))
        chips = len({device // devices_per_chip for device in devices})
        groups_per_chip = devices_per_chip * chips / len(devices)
        link_bytes += (
            groups_per_chip * size * _link_bytes_per_result_byte(kind, chips, len(devices))
        )
    return link_bytes / (tpu_slice.min_links * tpu_slice.generation.link_bytes_per_second)


def _link_bytes_per_result_byte(kind: str, chips: int, devices: int) -> float:
    """Returns the minimal bytes that leave a chip per byte of the collective's result."""
    fraction = (chips - 1) / chips
    match kind:
        case "all-reduce":
            return 2 * fraction
        case "reduce-scatter":  # the result is one device's shard
            return fraction * devices
        case "collective-permute":
            return float(chips > 1)
        case _:
            return fraction


def estimate_phase(
    experiment: Experiment, inputs: Inputs, phase_index: int, tpu_slice: Slice
) -> CompiledEstimate:
    """Compiles the train step for a phase's longest batch and estimates its memory and times.

    The arguments and errors are as for `compiler_report`.
    """
    report = compiler_report(experiment, inputs, phase_index, tpu_slice)
    kernels = (0.0, 0.0)
    if report["out_of_memory"] is None and (
        kernel_runs := _attention_kernel_runs(report["text"])
    ) != (0, 0):
        kernels = _attention_seconds(experiment, inputs, tpu_slice, kernel_runs)
    lowest_trainable_layer = state_bytes(experiment, tpu_slice.devices).lowest_trainable_layer
    flops = model_flops(experiment, inputs, inputs.shapes[-1], lowest_trainable_layer)
    return estimate_compiled(report, tpu_slice, flops, attention_kernel_seconds=kernels)


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
    sources = [inspect.getsource(each) for each in (pallas_attention, dropout, tpu_kernel_schedule)]
    identity = json.dumps([request, sources, compiler_versions()])
    cache_file = (
        cache_folder() / f"attention-{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json"
    )
    if not cache_file.exists():
        atomic_write(cache_file, run_worker_module("bench.tpu_kernel_schedule", request))
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
