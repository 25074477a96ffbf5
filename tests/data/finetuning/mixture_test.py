"""Tests mixtures of tasks: sampling rates, completeness, order, resuming."""

import itertools
from collections import Counter

import numpy as np
import pytest

from bert_jax import batch as batch_lib
from bert_jax.config.labeled_data import (
    CappedMixing,
    EqualMixing,
    ProportionalMixing,
    TemperatureMixing,
)
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.loader import FineTuningLoader
from bert_jax.data.finetuning.mixture import MixtureSampler, concatenate_features, mixing_rates
from bert_jax.errors import ConfigError, UserError

ROWS = {"small": 40, "middle": 200, "large": 760}
LENGTHS = (8, 16)


def count_by_task(rows: np.ndarray) -> dict[str, int]:
    """Returns the number of examples of each task among indices of concatenated examples."""
    bounds = np.cumsum([0, *ROWS.values()])
    counts = np.histogram(rows, bounds)[0]
    return dict(zip(ROWS, counts.tolist(), strict=True))


@pytest.mark.parametrize(
    "mixing",
    [
        EqualMixing(),
        ProportionalMixing(),
        TemperatureMixing(temperature=3),
        CappedMixing(max_examples=100),
    ],
)
def test_every_epoch_matches_the_mixing_rates(mixing):
    order, rates = MixtureSampler(ROWS, mixing, seed=5), mixing_rates(ROWS, mixing)
    assert len(order) == 1000
    for epoch in range(3):
        found = count_by_task(order(epoch))
        assert found == order.sequences_per_epoch and sum(found.values()) == 1000
        for name, count in found.items():
            assert abs(count - 1000 * rates[name]) < 1


def test_proportional_mixing_has_each_example_once_per_epoch():
    order = MixtureSampler(ROWS, ProportionalMixing(), seed=5)
    first, second = order(0), order(1)
    assert sorted(first) == sorted(second) == list(range(1000))
    assert (first != second).mean() > 0.9


def test_examples_repeat_only_after_all_of_their_task():
    order = MixtureSampler(ROWS, EqualMixing(), seed=5)
    counts = Counter()
    for epoch in range(7):
        counts.update(order(epoch).tolist())
        first = 0
        for size in ROWS.values():
            seen = [counts[row] for row in range(first, first + size)]
            assert max(seen) - min(seen) <= 1
            first += size
    assert max(counts.values()) > 50  # 7 x 333 samples of 40 examples


def test_each_pass_over_a_task_has_another_order():
    rows, sizes = {"a": 50, "b": 50}, np.arange(50)
    order = MixtureSampler(rows, ProportionalMixing(), seed=1)
    passes = [[row % 50 for row in order(e) if row // 50 == t] for e in range(2) for t in range(2)]
    for number, one in enumerate(passes):
        assert sorted(one) == sizes.tolist()
        assert all(one != other for other in passes[:number])


def test_tasks_are_spread_over_the_epoch():
    order = MixtureSampler(ROWS, ProportionalMixing(), seed=9)
    bounds = np.cumsum([0, *ROWS.values()])
    for epoch in range(4):
        rows = order(epoch)
        for low, high in itertools.pairwise(bounds):
            positions = np.flatnonzero((rows >= low) & (rows < high))
            spread = 1000 / np.sqrt(
                12 * len(positions)
            )  # the standard error of the mean of uniform positions
            assert abs(positions.mean() - 500) < 4 * spread


def test_order_is_a_function_of_seed_and_epoch():
    again = MixtureSampler(ROWS, TemperatureMixing(), seed=2)
    whole = MixtureSampler(ROWS, TemperatureMixing(), seed=2)
    np.testing.assert_array_equal(again(3), [whole(epoch) for epoch in range(4)][3])
    assert (whole(3) != MixtureSampler(ROWS, TemperatureMixing(), seed=3)(3)).any()


def test_task_that_is_never_sampled_is_rejected():
    with pytest.raises(
        ConfigError, match=r"never draws from the task 'rare' \(it has 3 of 1,000,003"
    ):
        MixtureSampler({"rare": 3, "common": 1_000_000}, TemperatureMixing(temperature=0.5), seed=0)


def features(count: int, seed: int, **targets) -> Features:
    sizes = np.random.default_rng(seed).integers(3, 17, count)
    made = {name: [value(size) for size in sizes] for name, value in targets.items()}
    return Features(
        input_ids=[np.full(size, 100 * seed + row, np.int32) for row, size in enumerate(sizes)],
        token_type_ids=[np.zeros(size, np.int32) for size in sizes],
        targets=made,
        example_index=np.arange(count),
    )


TASKS = {
    "classes": features(30, 1, labels=lambda size: 2),
    "numbers": features(20, 2, label_values=lambda size: 4.5),
    "tags": features(
        25,
        3,
        token_labels=lambda size: np.full(size, 3),
        token_label_weights=lambda size: np.ones(size, np.float32),
    ),
}


def loader(start: int = 0) -> FineTuningLoader:
    counts = {name: len(each) for name, each in TASKS.items()}
    order = MixtureSampler(counts, EqualMixing(), seed=4)
    return FineTuningLoader(
        concatenate_features(TASKS),
        LENGTHS,
        batch_size=8,
        seed=4,
        pad_id=0,
        sampler=order,
        start=start,
    )


def test_examples_have_zero_targets_for_other_tasks():
    made = loader()
    assert made.batches_per_epoch == 10 and made.distinct_batch_lengths(2) == list(LENGTHS)
    for _ in range(30):
        batch = next(made)
        sizes = {"B": 8, "L": batch["input_ids"].shape[1]}
        batch_lib.check_batch(batch, batch_lib.batch_spec(tuple(batch), sizes))
        for row in np.flatnonzero(batch["example_weights"]):
            length = batch["attention_mask"][row].sum()
            number = batch["task_ids"][row]
            assert batch["input_ids"][row, 0] // 100 == number + 1
            assert batch["labels"][row] == (2 if number == 0 else 0)
            assert batch["label_values"][row] == (4.5 if number == 1 else 0)
            tags = 3 * length if number == 2 else 0
            assert batch["token_labels"][row].sum() == tags
            assert batch["token_label_weights"][row].sum() == tags / 3


def test_mixture_loader_resumes_from_a_position():
    whole = loader()
    for _ in range(23):
        next(whole)
    resumed = loader(whole.position)
    for _ in range(20):
        expected, found = next(whole), next(resumed)
        assert all(np.array_equal(expected[name], found[name]) for name in expected)


COUNTS = {"rte": 2490, "mrpc": 3668, "mnli": 392702}


def test_mixing_rates_equal_their_definitions():
    sizes = np.array(list(COUNTS.values()))
    expected = {
        EqualMixing(): np.ones(3),
        ProportionalMixing(): sizes,
        TemperatureMixing(temperature=2): np.sqrt(sizes),
        TemperatureMixing(temperature=1): sizes,
        TemperatureMixing(temperature=1e9): np.ones(3),
        CappedMixing(max_examples=3000): np.array([2490, 3000, 3000]),
        CappedMixing(max_examples=10**9): sizes,
    }
    for mixing, weights in expected.items():
        rates = mixing_rates(COUNTS, mixing)
        assert list(rates) == list(COUNTS)
        np.testing.assert_allclose(list(rates.values()), weights / weights.sum(), rtol=1e-6)


def test_invalid_mixtures_are_rejected():
    with pytest.raises(UserError, match="expected one task or more"):
        mixing_rates({"rte": 0}, EqualMixing())
    with pytest.raises(UserError, match="expected one task or more"):
        mixing_rates({}, EqualMixing())
    with pytest.raises(ConfigError, match="expected a number above 0"):
        TemperatureMixing(temperature=0)
    with pytest.raises(ConfigError, match="max_examples is 0, expected a number at least 1"):
        CappedMixing(max_examples=0)
