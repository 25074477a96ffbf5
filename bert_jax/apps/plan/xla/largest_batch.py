"""Finds the largest batch of a phase that fits on a slice, by bisection with the compiler."""

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path

from bert_jax.apps.plan.inputs import Inputs
from bert_jax.apps.plan.xla.compile_phase import compile_phase
from bert_jax.apps.plan.xla.compile_report import CompiledEstimate
from bert_jax.config.experiment import Experiment
from bert_jax.parallel.tpu_slices import Slice

logger = logging.getLogger(__name__)

_MAX_PER_DEVICE_BATCH_SIZE = 4096  # more than any BERT phase uses


def largest_batch(
    experiment: Experiment,
    inputs: Inputs,
    phase_index: int,
    tpu_slice: Slice,
    usable_bytes: int,
    *,
    cache: Path | None = None,
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
      cache: the folder of cached results (default: `cache_folder()`).
      compile_fn: compiles a phase; tests replace it.
    """
    data, fsdp, _ = experiment.mesh.axis_sizes(tpu_slice.devices)
    batch_size_multiple = data * fsdp * inputs.phase.gradient_accumulation_steps

    def fits(per_device_batch_size: int) -> bool:
        resized = _with_batch_size(inputs, per_device_batch_size * batch_size_multiple)
        phases = list(experiment.train.phases)
        phases[phase_index] = resized.phase
        train = dataclasses.replace(experiment.train, phases=tuple(phases))
        candidate = dataclasses.replace(experiment, train=train)
        estimate = compile_fn(candidate, resized, phase_index, tpu_slice, cache)
        reason = (
            estimate.out_of_memory
            or f"{estimate.peak_bytes / 2**30:.2f} of {usable_bytes / 2**30:.2f} GiB"
        )
        result = "fits" if estimate.fits(usable_bytes) else "does not fit"
        logger.info(
            "batch size %s (%d per device) %s: %s",
            f"{per_device_batch_size * batch_size_multiple:,}",
            per_device_batch_size,
            result,
            reason,
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


def _with_batch_size(inputs: Inputs, batch_size: int) -> Inputs:
    shapes = tuple({**sizes, "B": batch_size} for sizes in inputs.shapes)
    phase = dataclasses.replace(inputs.phase, batch_size=batch_size)
    return dataclasses.replace(inputs, phase=phase, shapes=shapes)
