"""Covers bert_jax/models/packing.py: texts in common rows are encoded as if alone, in each family.

A row has up to three texts, and the last one only padding.
"""

import jax
import numpy as np
import pytest

from bert_jax.batch import PACKED_TOKENS
from bert_jax.data.sentence_embeddings.packed_rows import packed_tokens
from bert_jax.models.model import build_network
from tests.helpers.families import FAMILIES
from tests.helpers.quick_init import quick_init

LENGTHS = np.array([[3], [10], [4], [6], [10], [2]])
LENGTH, NUM_ROWS = 10, 5


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_texts_have_the_hidden_states_of_padded_ones(name):
    config = FAMILIES[name].small
    mask = np.arange(LENGTH) < LENGTHS
    ids = np.random.default_rng(0).integers(5, config.vocab_size, mask.shape) * mask
    batch = {
        "input_ids": ids.astype(np.int32),
        "token_type_ids": np.zeros_like(ids, np.int32),
        "attention_mask": mask.astype(np.int32),
    }
    packed = {**batch, PACKED_TOKENS: packed_tokens(LENGTHS, (NUM_ROWS, LENGTH), 1, 1)}
    network = build_network(config)
    params = quick_init(network.abstract())
    encode = jax.jit(
        lambda batch: network.merge(params).encode(batch, output_hidden_states=True).hidden_states
    )
    for alone, together in zip(encode(batch), encode(packed), strict=True):
        np.testing.assert_allclose(together[mask], alone[mask], atol=3e-6)
