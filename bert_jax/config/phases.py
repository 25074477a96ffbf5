"""Divides phases of a run, for recipes. Imports no jax."""

import dataclasses
from collections.abc import Sequence

from bert_jax.config.train import Phase, num_predictions
from bert_jax.errors import ConfigError

# mmBERT's phases: the fraction of the updates up to the end of the phase, and the masking rate.
# They have 2.3, 0.6 and 0.1 of its 3 trillion tokens.
_MMBERT_PHASES = ((0.77, 0.3), (0.97, 0.15), (1.0, 0.05))


def warm_up_batch_size(
    phases: Sequence[Phase], *, first_batch_size: int, num_sequences: int
) -> tuple[Phase, ...]:
    """Replaces the beginning of a run by phases whose batches grow to the full size.

    The sizes are multiples of the first one, and each has the same number of updates, as for
    ModernBERT (Warner et al. 2024, section 2.2). The run reads as many sequences as before, so it
    has more updates. A microbatch is never larger than in the full batch.

    Args:
      phases: the phases of the run, of which the first one is divided.
      first_batch_size: the size of the first batches, which divides that of the phase.
      num_sequences: how many sequences are read in batches of less than the full size.

    Raises:
      ConfigError: the first size does not divide the full one, or the first phase is too short.
    """
    phase, *others = phases
    full = phase.batch_size
    if first_batch_size < 1 or full % first_batch_size or first_batch_size == full:
        raise ConfigError(
            f"the batch size grows from {first_batch_size} to {full}; expected a first size that "
            "divides the full one, and is smaller"
        )
    sizes = range(first_batch_size, full, first_batch_size)
    updates = max(1, round(num_sequences / sum(sizes)))
    remaining = phase.steps - round(updates * sum(sizes) / full)
    if remaining < 1:
        raise ConfigError(
            f"the batch size grows to {full} over {updates * sum(sizes):,} sequences, but the "
            f"first phase has {phase.steps * full:,}; expected more steps, or a shorter growth"
        )
    grown = [
        dataclasses.replace(
            phase,
            steps=updates,
            batch_size=size,
            gradient_accumulation_steps=_num_microbatches(phase, size),
        )
        for size in sizes
    ]
    return (*grown, dataclasses.replace(phase, steps=remaining), *others)


def _num_microbatches(phase: Phase, batch_size: int) -> int:
    """Returns the smallest number of microbatches that are not larger than those of the phase."""
    largest = phase.batch_size // phase.gradient_accumulation_steps
    number = -(-batch_size // largest)
    while batch_size % number:
        number += 1
    return number


def with_mmbert_masking_rates(phase: Phase) -> tuple[Phase, ...]:
    """Divides a phase into those of mmBERT (Marone et al. 2025): 30, 15 and 5 % of the tokens.

    A phase without updates is left out.
    """
    phases: list[Phase] = []
    start = 0
    for fraction, rate in _MMBERT_PHASES:
        stop = round(fraction * phase.steps)
        if stop > start:
            phases.append(
                dataclasses.replace(
                    phase,
                    steps=stop - start,
                    max_predictions_per_seq=num_predictions(rate, phase.seq_length),
                    mlm_probability=rate,
                )
            )
        start = stop
    return tuple(phases)


def updates_of_sequences(phases: Sequence[Phase], num_sequences: int) -> int:
    """Returns after how many updates a run has read a number of sequences."""
    updates = 0
    for phase in phases:
        needed = -(-num_sequences // phase.batch_size)
        if needed <= phase.steps:
            return updates + needed
        updates, num_sequences = (
            updates + phase.steps,
            num_sequences - phase.steps * phase.batch_size,
        )
    return updates
