"""Tests phases whose batches grow, and the recipe that has them.

Covers bert_jax/config/phases.py.
"""

import dataclasses
from pathlib import Path

import pytest

from bert_jax.apps.plan.inputs import planned_experiment
from bert_jax.config.phases import updates_of_sequences, warm_up_batch_size
from bert_jax.config.train import Phase, WarmupStableDecay
from bert_jax.errors import ConfigError

RECIPE = str(Path(__file__).parents[2] / "configs/pretrain/modernbert.py")
FULL = Phase(
    steps=1000,
    seq_length=64,
    batch_size=96,
    max_predictions_per_seq=20,
    gradient_accumulation_steps=4,
)


def sequences(phases: tuple[Phase, ...]) -> int:
    return sum(phase.steps * phase.batch_size for phase in phases)


def test_batches_grow_in_equal_steps_with_equally_many_updates():
    second = dataclasses.replace(FULL, steps=7, mlm_probability=0.1)
    *grown, full, last = warm_up_batch_size(
        (FULL, second), first_batch_size=16, num_sequences=24_000
    )
    assert [phase.batch_size for phase in grown] == [16, 32, 48, 64, 80]
    assert {phase.steps for phase in grown} == {100}
    assert sequences(tuple(grown)) == 24_000
    assert (full.batch_size, full.steps, last) == (96, 750, second)
    # Microbatches have at most the 24 sequences of the full batch.
    assert [phase.gradient_accumulation_steps for phase in grown] == [1, 2, 2, 4, 4]
    for phase in grown:
        unchanged = {"batch_size": 96, "steps": 1000, "gradient_accumulation_steps": 4}
        assert dataclasses.replace(phase, **unchanged) == FULL


@pytest.mark.parametrize(("first", "num_sequences"), [(1, 7_000), (24, 5_000), (48, 123)])
def test_run_reads_as_many_sequences_as_before(first, num_sequences):
    phases = warm_up_batch_size((FULL,), first_batch_size=first, num_sequences=num_sequences)
    assert abs(sequences(phases) - 96_000) <= 48
    sizes = sum(phase.batch_size for phase in phases[:-1])
    assert abs(sequences(phases[:-1]) - num_sequences) <= sizes / 2
    # The largest learning rate is reached after as many sequences.
    for target in (1, 3_000, 50_000):
        updates, read, done, size = updates_of_sequences(phases, target), 0, 0, 0
        for phase in phases:
            for _ in range(phase.steps):
                if done < updates:
                    read, done, size = read + phase.batch_size, done + 1, phase.batch_size
        assert target <= read < target + size
    assert updates_of_sequences(phases, 10**9) == sum(phase.steps for phase in phases)


@pytest.mark.parametrize(
    ("first", "num_sequences", "message"),
    [
        (36, 1000, "the batch size grows from 36 to 96; expected a first size that divides"),
        (96, 1000, "grows from 96 to 96"),
        (0, 1000, "grows from 0 to 96"),
        (48, 96_000, "over 96,000 sequences, but the first phase has 96,000; expected more steps"),
    ],
)
def test_growth_that_is_impossible_is_refused(first, num_sequences, message):
    with pytest.raises(ConfigError, match=message):
        warm_up_batch_size((FULL,), first_batch_size=first, num_sequences=num_sequences)


def test_recipe_has_the_sizes_and_tokens_of_modernbert():
    arguments = ["batch_size_warmup=true", "masking_rates=mmbert"]
    grown = planned_experiment(RECIPE, arguments, [], 50288)[0].train
    sizes = [phase.batch_size for phase in grown.phases]
    assert sizes == [768, 1536, 2304, 3072, 3840, 4608, 4608, 4608]
    tokens = [phase.steps * phase.batch_size * phase.seq_length for phase in grown.phases]
    assert sum(tokens[:5]) == pytest.approx(50e9, rel=1e-3)
    assert sum(tokens) == pytest.approx(1.719e12, rel=1e-5)
    assert isinstance(grown.schedule, WarmupStableDecay)
    assert grown.schedule.warmup_steps == -(-3_000_000_000 // (1024 * 768)) == 3815
