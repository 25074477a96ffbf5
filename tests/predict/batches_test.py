"""Tests that batches of texts have few shapes, and contain every text once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.predict.batches import TOKENS_PER_BATCH, next_power_of_two, padded_batches


@given(st.lists(st.integers(1, 50), max_size=200), st.sampled_from([1, 2, 6]))
def test_every_text_is_in_one_batch_of_few_shapes(lengths, num_shards):
    rows = [[7 + number] * length for number, length in enumerate(lengths)]
    seen: list[int] = []
    for indices, batch in padded_batches(rows, pad_id=3, max_length=50, num_shards=num_shards):
        seen += indices
        height, width = batch["input_ids"].shape
        shard_size = TOKENS_PER_BATCH // width
        shard_rows = next_power_of_two(-(-len(indices) // num_shards))
        assert height == min(shard_rows, shard_size) * num_shards and width in (16, 32, 50)
        for place, index in enumerate(indices):
            length = len(rows[index])
            assert batch["input_ids"][place, :length].tolist() == rows[index]
            assert (batch["input_ids"][place, length:] == 3).all()
            assert batch["attention_mask"][place].tolist() == [1] * length + [0] * (width - length)
        assert (batch["attention_mask"].sum(axis=1) >= 1).all()
        assert all(array.dtype == np.int32 for array in batch.values())
    assert sorted(seen) == list(range(len(rows)))


def test_many_texts_have_more_lengths_and_less_padding():
    rows = [[7] * (1 + number % 300) for number in range(900)]
    batches = [batch for _, batch in padded_batches(rows, pad_id=3, max_length=300)]
    widths = {batch["input_ids"].shape[1] for batch in batches}
    assert widths == {16, 64, 80, 96, 112, 128, 160, 192, 224, 256, 300}
    # A full batch has as many rows as fit, whether or not they are a power of two.
    assert (TOKENS_PER_BATCH // 300, 300) in {batch["input_ids"].shape for batch in batches}
    padded, texts = sum(batch["input_ids"].size for batch in batches), sum(map(len, rows))
    assert padded < 1.15 * texts
    few = [
        batch["input_ids"].shape
        for _, batch in padded_batches(rows[:300], pad_id=3, max_length=300)
    ]
    assert {width for _, width in few} == {64, 128, 256, 300}


def test_round_up():
    assert [next_power_of_two(n) for n in (0, 1, 2, 3, 4, 5, 64, 65)] == [1, 1, 2, 4, 4, 8, 64, 128]
