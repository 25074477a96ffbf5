"""Covers bert_jax/models/bigbird/."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.models import random_parameters
from bert_jax.errors import ConfigError
from bert_jax.models.bigbird.attention import block_counts, block_sparse_attention, random_blocks
from bert_jax.models.bigbird.config import BigBirdConfig, BlockSparseWhenLong, FullAttention
from bert_jax.models.layers.config import ComputeConfig, LearnedPositions
from bert_jax.models.model import build_network
from bert_jax.models.sharding import parameter_axes
from bert_jax.params import paths
from tests.helpers.quick_init import quick_init

SMALL = BigBirdConfig(
    vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8,
    positions=LearnedPositions(max_position_embeddings=64),
    attention=BlockSparseWhenLong(block_size=2, num_random_blocks=1),
)  # fmt: skip


@pytest.mark.parametrize(
    ("size", "with_pooler"),
    [("base", 127_468_800), pytest.param("large", 359_123_968, marks=pytest.mark.slow)],
)
def test_parameter_counts(size, with_pooler):
    params = paths.flatten(build_network(BigBirdConfig.from_size(size), ("pooler",)).abstract())
    assert sum(math.prod(leaf.shape) for leaf in params.values()) == with_pooler
    for path, leaf in params.items():
        assert len(parameter_axes()[path]) in (1, len(leaf.shape))


def test_published_values():
    config = BigBirdConfig.from_size("base")
    assert config == BigBirdConfig()
    assert (config.vocab_size, config.max_length, config.type_vocab_size) == (50358, 4096, 2)
    assert config.attention == BlockSparseWhenLong(block_size=64, num_random_blocks=3)
    assert BlockSparseWhenLong().max_full_length == 704


@pytest.mark.parametrize("is_training", [False, True])
# The last block of the second is not full.
@pytest.mark.parametrize("length", [pytest.param(36, marks=pytest.mark.slow), 41])
def test_context_and_gradients_equal_dense_attention(length, is_training):
    block, heads, num_random, num_blocks = 3, 2, 2, -(-length // 3)
    plan = None
    if is_training:
        plan = random_blocks(
            num_blocks=num_blocks, block_size=block, num_heads=heads, num_random_blocks=num_random,
            max_position_embeddings=64, seed=1,
        )  # fmt: skip
    keys = jax.random.split(jax.random.key(length), 4)
    *qkv, grad = (jax.random.normal(key, (2, length, heads, 4)) for key in keys)
    ids = (jnp.arange(length) < jnp.array([[length], [length - 7]])).astype(jnp.int32)
    real = ids[..., None, None].astype(jnp.float32)
    counts = block_counts(num_blocks, num_random, plan).astype(np.float32)
    counts = np.repeat(np.repeat(counts, block, 1), block, 2)

    def dense(q, k, v):
        scores = jnp.einsum("BQHK,BLHK->BHQL", q, k) / 2 + jnp.log(counts[:, :length, :length])
        mask = ids[:, None, :, None] == ids[:, None, None, :]
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
        return jnp.einsum("BHQL,BLHK->BQHK", weights, v)

    blocked = functools.partial(
        block_sparse_attention, segment_ids=ids, block_size=block, num_random_blocks=num_random,
        plan=plan,
    )  # fmt: skip

    @functools.partial(jax.jit, static_argnums=0)
    def outputs(attention):
        context, back = jax.vjp(lambda q, k, v: attention(q, k, v) * real, *qkv)
        return (context, *back(grad))

    for one, other in zip(outputs(blocked), outputs(dense), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_block_counts_of_evaluation_count_the_first_block_again():
    counts = block_counts(7, 3, None)[0]
    assert counts[0].tolist() == counts[-1].tolist() == [1] * 7
    assert counts[1].tolist() == [4, 1, 1, 0, 0, 0, 1]
    assert counts[3].tolist() == [4, 0, 1, 1, 1, 0, 1]
    assert counts[5].tolist() == [4, 0, 0, 0, 1, 1, 1]


def test_attention_weights_sum_to_one_and_are_those_of_the_pattern():
    network = build_network(SMALL, ("masked_lm",))
    encoder: Any = network.merge(paths.unflatten(random_parameters(SMALL))).encoder
    run = jax.jit(lambda ids: encoder(ids, output_attentions=True).attentions[0])
    weights = np.asarray(run(jnp.full((1, 20), 5)))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(weights[0, 0, ::2, ::2] > 0, block_counts(10, 1, None)[0] > 0)


def test_work_grows_linearly_with_length():
    def flops(length):
        qkv = [jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)] * 3
        ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
        run = functools.partial(
            block_sparse_attention, block_size=64, num_random_blocks=3, plan=None
        )
        cost: Any = jax.jit(run).lower(*qkv, ids).compile().cost_analysis()
        return cost["flops"]

    assert flops(8192) / flops(2048) == pytest.approx(4, rel=0.05)


def test_dropout_comes_before_the_norm_of_the_embeddings():
    """The norm's output has a mean of 0, but not after dropout, as in BERT's order."""
    network = build_network(dataclasses.replace(SMALL, hidden_dropout_prob=0.5), ("masked_lm",))
    encoder: Any = network.merge(quick_init(network.abstract())).encoder
    embeddings = encoder.embeddings
    ids = jnp.full((4, 10), 5)
    dropped = embeddings(ids, jnp.zeros_like(ids), None, jnp.array([1, 2], jnp.uint32))
    np.testing.assert_allclose(dropped.mean(-1), 0, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_act": "gelu"}, "expected 'gelu_tanh'"),
        ({"positions": LearnedPositions(max_position_embeddings=0)}, "expected an integer from 1"),
    ],
)
def test_bad_values_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(SMALL, **fields)
    with pytest.raises(ConfigError, match="block_size is 0"):
        BlockSparseWhenLong(block_size=0)


def test_packed_and_causal_long_sequences_are_refused():
    network = build_network(SMALL, ("masked_lm",))
    encoder = network.merge(paths.unflatten(random_parameters(SMALL))).encoder
    short, long = jnp.ones((1, 14), int), jnp.ones((1, 15), int)
    with pytest.raises(ConfigError, match=r"no packed examples.* at most 14 tokens"):
        encoder(long, packing_ids=long, position_ids=long)
    with pytest.raises(ConfigError, match=r"no causal attention.* at most 14 tokens"):
        encoder(long, causal=True)
    jax.eval_shape(lambda: encoder(short, packing_ids=short, position_ids=short, causal=True))


def test_scan_is_refused_unless_attention_is_full():
    scanned = ComputeConfig(layer_loop="scanned")
    with pytest.raises(ConfigError, match="random blocks of its own"):
        build_network(SMALL, compute=scanned)
    build_network(dataclasses.replace(SMALL, attention=FullAttention()), compute=scanned)


def test_flops_count_the_visible_blocks_only():
    config, layer = BigBirdConfig(), 8 * 768**2 + 4 * 768 * 3072
    assert config.encoder_flops(4096) == 12 * (layer + 4 * 624 * 768)
    assert config.encoder_flops(512) == 12 * (layer + 4 * 512 * 768)
