"""Tests packing: plans are valid and dense, and packed sequences number their examples."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.apps.testing.random_corpus import random_vocab_arrays
from bert_jax.data.pretraining.windows import PackingPlan, collate_packed_segments, pack


@given(
    lengths=st.lists(st.integers(3, 64), min_size=1, max_size=200),
    rows=st.integers(1, 12),
)
def test_plan_packs_leading_examples_without_overlap(lengths: list[int], rows: int) -> None:
    placed = pack(np.array(lengths)[:, None], rows, (64,))
    count = len(placed.rows)
    assert 1 <= count <= len(lengths)
    assert placed.rows.min() >= 0 and placed.rows.max() < rows
    used = np.zeros((rows, 64), dtype=int)
    offsets = placed.offsets[:, 0]
    for length, row, offset in zip(lengths[:count], placed.rows, offsets, strict=True):
        assert offset + length <= 64
        used[row, offset : offset + length] += 1
    assert used.max() == 1
    for row in used:  # no gap before the last token of a sequence
        assert (np.diff(row) <= 0).all()


def test_plans_leave_little_padding() -> None:
    rng = np.random.default_rng(0)
    for seed in range(5):
        lengths = np.minimum(rng.lognormal(4, 1, 5000).astype(int) + 3, 512)
        placed = pack(lengths[:, None], 64, (512,))
        assert lengths[: len(placed.rows)].sum() / (64 * 512) > 0.95, seed


def test_all_examples_are_packed_if_they_fit() -> None:
    placed = pack(np.array([[10], [64], [20]]), 4, (64,))
    assert len(placed.rows) == 3 and len(set(placed.rows.tolist())) == 2


@given(
    lengths=st.lists(st.tuples(st.integers(1, 32), st.integers(1, 9)), min_size=1, max_size=100),
    rows=st.integers(1, 8),
)
def test_sources_and_targets_are_packed_into_the_same_rows(
    lengths: list[tuple[int, int]], rows: int
) -> None:
    placed = pack(np.array(lengths), rows, (32, 9))
    count = len(placed.rows)
    assert 1 <= count <= len(lengths)
    for side, capacity in enumerate((32, 9)):
        used = np.zeros((rows, capacity), dtype=int)
        positions = zip(lengths[:count], placed.rows, placed.offsets[:, side], strict=True)
        for length, row, offset in positions:
            assert offset + length[side] <= capacity
            used[row, offset : offset + length[side]] += 1
        assert used.max() == 1


def test_packed_rows_number_examples_and_restart_positions() -> None:
    placed = PackingPlan(np.array([1, 0, 0]), np.array([[0], [4], [0]]))
    texts = [np.array([9]), np.array([7, 8]), np.array([5, 6])]
    keys = np.array([11, 12, 13], dtype=np.uint64)
    fields, token_keys = collate_packed_segments(texts, keys, placed, (2, 9), random_vocab_arrays())
    np.testing.assert_array_equal(
        fields["input_ids"], [[2, 5, 6, 3, 2, 7, 8, 3, 0], [2, 9, 3, 0, 0, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
        fields["packing_ids"], [[1, 1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 1, 0, 0, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
        fields["position_ids"], [[0, 1, 2, 3, 0, 1, 2, 3, 0], [0, 1, 2, 0, 0, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(fields["attention_mask"], fields["packing_ids"] > 0)
    assert not fields["token_type_ids"].any()
    np.testing.assert_array_equal(token_keys[0], [13] * 4 + [12] * 4 + [0])
