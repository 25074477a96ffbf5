"""Tests batches of examples of similar length: completeness, order, resuming, several hosts."""

import itertools
from typing import Any

import numpy as np
import pytest

from bert_jax import batch as batch_lib
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.loader import (
    MAX_LENGTHS,
    FineTuningLoader,
    evaluation_batches,
    fit_bucket_lengths,
)
from bert_jax.errors import ConfigError

LENGTHS, ROWS, BATCH = (8, 16, 32), 203, 8


def features(rows=ROWS, seed=0, max_length=32):
    """Returns sequences whose ids are their own index + 1, to identify them in a batch."""
    sizes = np.random.default_rng(seed).integers(3, max_length + 1, rows)
    return Features(
        input_ids=[np.full(size, row + 1, np.int32) for row, size in enumerate(sizes)],
        token_type_ids=[np.zeros(size, np.int32) for size in sizes],
        targets={"labels": list(range(rows))},
        example_index=np.arange(rows),
    )


def loader(**changes):
    settings = {"batch_size": BATCH, "seed": 3, "pad_id": 0, **changes}
    return FineTuningLoader(features(), LENGTHS, **settings)


def rows_of(batch):
    return [int(row[0]) - 1 for row in batch["input_ids"][batch["example_weights"] > 0]]


def test_texts_of_a_query_are_in_one_batch():
    made = features(40)
    query_ids = np.random.default_rng(1).permutation(
        [q for q in range(16) for _ in range(1 + q % 4)]
    )
    made.targets = {"query_ids": query_ids.tolist()}
    settings: Any = {"batch_size": 9, "seed": 3, "pad_id": 0, "texts_per_query": 4}
    batches = FineTuningLoader(made, LENGTHS, **settings)
    assert batches.batches_per_epoch == 8 and batches.examples_per_epoch == 72
    epochs = [[next(batches) for _ in range(8)] for _ in range(2)]
    for epoch in epochs:
        assert sorted(row for batch in epoch for row in rows_of(batch)) == list(range(40))
        for batch in epoch:
            assert batch["input_ids"].shape[0] == 9
            rows = np.isin(query_ids, batch["query_ids"][batch["example_weights"] > 0])
            assert sorted(rows_of(batch)) == np.flatnonzero(rows).tolist()
    assert rows_of(epochs[0][0]) != rows_of(epochs[1][0])
    resumed = FineTuningLoader(made, LENGTHS, **settings, start=8 * 9)
    np.testing.assert_array_equal(next(resumed)["query_ids"], epochs[1][0]["query_ids"])


def test_every_epoch_has_each_example_once_in_another_order():
    made = loader()
    assert made.batches_per_epoch == -(-ROWS // BATCH)
    epochs = []
    for _ in range(3):
        batches = [next(made) for _ in range(made.batches_per_epoch)]
        epochs.append([row for batch in batches for row in rows_of(batch)])
        assert sorted(epochs[-1]) == list(range(ROWS))
        assert sum(batch["example_weights"].min() == 0 for batch in batches) <= 1
    assert epochs[0] != epochs[1] != epochs[2]
    again = loader()
    assert [row for _ in range(26) for row in rows_of(next(again))] == epochs[0]


def test_batches_are_padded_to_the_smallest_sufficient_bucket():
    made = loader()
    assert made.distinct_batch_lengths() == list(LENGTHS)
    lengths, padded = features().lengths, 0
    for _ in range(made.batches_per_epoch):
        batch = next(made)
        sizes = {"B": BATCH, "L": batch["input_ids"].shape[1]}
        batch_lib.check_batch(batch, batch_lib.batch_spec(tuple(batch), sizes))
        longest = max(lengths[row] for row in rows_of(batch))
        assert longest <= sizes["L"] in LENGTHS
        padded += longest <= sizes["L"] // 2
        assert batch["attention_mask"].sum(1)[0] == lengths[rows_of(batch)[0]]
        assert (batch["labels"][batch["example_weights"] > 0] == rows_of(batch)).all()
    assert padded <= len(LENGTHS)  # only examples left over from a smaller bucket


def test_loader_resumes_from_a_position():
    whole = loader()
    for _ in range(37):
        next(whole)
    resumed = loader(start=whole.position)
    for _ in range(30):
        expected, found = next(whole), next(resumed)
        assert all(np.array_equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_divide_the_examples_of_a_batch(hosts):
    one = loader()
    several = [loader(process_index=index, process_count=hosts) for index in range(hosts)]
    for _ in range(40):
        expected, parts = next(one), [next(part) for part in several]
        for name in expected:
            joined = np.concatenate([part[name] for part in parts])
            np.testing.assert_array_equal(joined, expected[name])


def test_evaluation_has_each_example_once_sorted_by_length():
    seen, sizes = [], []
    for rows, batch in evaluation_batches(features(), LENGTHS, batch_size=16, pad_id=0):
        assert rows_of(batch) == rows.tolist()
        seen += rows.tolist()
        sizes.append(batch["input_ids"].shape[1])
    assert sorted(seen) == list(range(ROWS)) and sizes == sorted(sizes)


def test_buckets_that_no_example_needs_are_not_used():
    short = FineTuningLoader(features(50, max_length=8), LENGTHS, batch_size=16, seed=0, pad_id=0)
    assert short.distinct_batch_lengths() == [8]


def test_fitted_lengths_are_nearly_the_best():
    lengths = np.random.default_rng(0).geometric(0.05, 2000) + 2
    fitted = fit_bucket_lengths(lengths, 512)
    longest = -(-lengths.max() // 8) * 8
    shorter = [length for length in fitted if length <= longest]
    assert shorter[-1] == longest and len(shorter) <= MAX_LENGTHS
    assert not any(length % 8 for length in fitted)

    def tokens(buckets):
        return np.array(buckets)[np.searchsorted(buckets, lengths)].sum()

    candidates = range(8, longest, 8)
    best = min(
        tokens([*chosen, longest])
        for chosen in itertools.combinations(candidates, len(shorter) - 1)
    )
    assert best <= tokens(shorter) < 1.05 * best
    # Texts that are longer than those of training have doubles of the last length.
    assert [*fitted[len(shorter) :], 512] == [336, 512]


def test_lengths_that_save_little_are_not_added():
    assert fit_bucket_lengths(np.array([30, 31, 32]), 128) == (32, 64)
    assert fit_bucket_lengths(np.array([8] * 99 + [100]), 104) == (8,)
    # 104 instead of 112 would save a fourteenth of one sequence in ten.
    assert fit_bucket_lengths(np.array([112] * 9 + [100]), 112) == ()
    assert fit_bucket_lengths(np.array([17] * 2 + [44]), 45) == (24,)
    assert fit_bucket_lengths(np.zeros(0, int), 128) == ()


def test_short_runs_have_lengths_that_save_more_than_their_compilation():
    # Eight tokens instead of 16 save a quarter of all tokens: ten updates of 40.
    lengths = np.array([8] * 50 + [16] * 50)
    assert fit_bucket_lengths(lengths, 16, 41) == (8,)
    assert fit_bucket_lengths(lengths, 16, 39) == ()
    # However long the run is, less than a twentieth is not saved.
    assert fit_bucket_lengths(np.array([104] * 9 + [112] * 5), 112, 1e6) == ()


def test_all_packed_batches_of_a_length_have_the_rows_of_the_fullest():
    longest = np.array([8] * 50 + [16] * 50)
    # 5 rows of 8 tokens instead of 10 rows of 16, for half of the batches.
    tokens = np.array([40] * 50 + [160] * 50)
    assert fit_bucket_lengths(longest, 16, tokens_per_batch=tokens) == (8,)
    # One full batch of 8 tokens needs 20 rows, which the others then have, too.
    tokens[0] = 160
    assert fit_bucket_lengths(longest, 16, tokens_per_batch=tokens) == ()
    assert fit_bucket_lengths(longest, 16, tokens_per_batch=tokens, num_parts=20) == (8,)


def test_too_long_and_missing_examples_are_rejected():
    with pytest.raises(
        ConfigError, match="a sequence has 32 tokens, but the longest bucket has 16"
    ):
        FineTuningLoader(features(), (8, 16), batch_size=8, seed=0, pad_id=0)
    with pytest.raises(ConfigError, match="no sequences to train on"):
        FineTuningLoader(Features(), LENGTHS, batch_size=8, seed=0, pad_id=0)


def test_padding_examples_have_weight_zero_and_one_real_token():
    made = loader()
    batches = [next(made) for _ in range(made.batches_per_epoch)]
    partial = next(batch for batch in batches if batch["example_weights"].min() == 0)
    empty = partial["example_weights"] == 0
    assert (partial["attention_mask"][empty].sum(1) == 1).all()
    assert (partial["input_ids"][empty] == 0).all() and (partial["labels"][empty] == 0).all()
