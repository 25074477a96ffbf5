"""The largest batch of a phase that the compiler says fits on a slice, by bisection."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from bert_jax.experiment import Experiment
from bert_jax.plan.compile import compile_phase
from bert_jax.plan.compiled import Compiled
from bert_jax.plan.inputs import Inputs
from bert_jax.plan.slices import Slice

_MOST = 4096  # rows of a device: no phase of a BERT has more


def largest_batch(
    experiment: Experiment,
    inputs: Inputs,
    phase: int,
    where: Slice,
    room: int,
    *,
    say: Callable[[str], None],
    cache: Path | None = None,
    compiled: Callable[..., Compiled] = compile_phase,
) -> int:
    """Rows of the whole batch; 0 if not even one row a device fits.

    Rows of a device are doubled, up to 4,096, until they do not fit, then bisected to the last.

    Args:
      room: bytes of a device that a run may use.
      say: is told of each trial, which takes minutes.
      compiled: what compiles; a test's own has no compiler.
    """
    data, fsdp, _ = experiment.mesh.sizes(where.devices)
    unit = data * fsdp * inputs.phase.accumulate

    def fits(rows: int) -> bool:
        changed = _with_rows(inputs, rows * unit)
        phases = list(experiment.train.phases)
        phases[phase] = changed.phase
        train = dataclasses.replace(experiment.train, phases=tuple(phases))
        tried = dataclasses.replace(experiment, train=train)
        found = compiled(tried, changed, phase, where, cache)
        needs = found.out_of_memory or f"{found.peak_bytes / 2**30:.2f} of {room / 2**30:.2f} GiB"
        verdict = "fits" if found.fits(room) else "does not fit"
        say(f"{rows * unit:,} rows ({rows} a device): {verdict}: {needs}")
        return found.fits(room)

    low, high = 0, 1
    while low < _MOST and fits(high):
        low, high = high, 2 * high
    high = min(high, _MOST + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * unit


def _with_rows(inputs: Inputs, rows: int) -> Inputs:
    shapes = tuple({**sizes, "B": rows} for sizes in inputs.shapes)
    phase = dataclasses.replace(inputs.phase, batch_size=rows)
    return dataclasses.replace(inputs, phase=phase, shapes=shapes)
