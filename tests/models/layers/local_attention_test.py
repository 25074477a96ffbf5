"""Covers layers/local_attention.py: blocked attention equals dense attention with a window mask."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.layers.config import block_shape
from bert_jax.models.layers.dropout import make_dropout_seeds
from bert_jax.models.layers.local_attention import SharedKeys, local_attention

B, H, K = 2, 3, 8


def dense_attention(q, k, v, segment_ids, *, radius, causal=False):
    """Computes the same from the definition, with all L x L scores."""
    distance = jnp.arange(q.shape[1])[:, None] - jnp.arange(q.shape[1])[None]
    mask = (jnp.abs(distance) <= radius) & (segment_ids[:, :, None] == segment_ids[:, None, :])
    if causal:
        mask &= distance >= 0
    scores = jnp.einsum("BQHK,BLHK->BHQL", q, k) / jnp.sqrt(jnp.float32(K))
    weights = jax.nn.softmax(jnp.where(mask[:, None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("BHQL,BLHK->BQHK", weights, v)


def arrays(length):
    keys = jax.random.split(jax.random.key(length), 4)
    return [jax.random.normal(key, (B, length, H, K), jnp.float32) for key in keys]


def segments(length):
    """Returns segment ids: packed examples of random lengths, and a sequence with padding."""
    packed = jnp.sort(jax.random.randint(jax.random.key(1), (length,), 1, 6))
    is_real = jnp.arange(length) < length // 3
    return jnp.stack([packed, is_real.astype(jnp.int32)])


@pytest.mark.parametrize(
    "length, radius, causal",
    [
        (1, 1, False),
        pytest.param(20, 64, False, marks=pytest.mark.slow),
        pytest.param(256, 64, False, marks=pytest.mark.slow),  # one block
        (257, 64, False),
        (384, 64, True),
        (500, 3, False),
        pytest.param(600, 65, False, marks=pytest.mark.slow),  # one more than half a tile
        pytest.param(900, 256, False, marks=pytest.mark.slow),
    ],
)
def test_context_and_gradients_equal_dense_attention(length, radius, causal):
    *qkv, grad = arrays(length)
    ids = segments(length)

    @functools.partial(jax.jit, static_argnums=0)
    def outputs(attention, qkv, grad):
        context, back = jax.vjp(
            lambda q, k, v: attention(q, k, v, ids, radius=radius, causal=causal), *qkv
        )
        return (context, *back(grad))

    found, expected = outputs(local_attention, qkv, grad), outputs(dense_attention, qkv, grad)
    for name, one, other in zip(("context", "q", "k", "v"), found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("length", [pytest.param(100, marks=pytest.mark.slow), 600])
def test_shared_keys_and_separate_key_segments_equal_dense_attention(length):
    q, k, v, grad = arrays(length)
    ids = segments(length)
    # The keys that are shared are no keys of the windows; the second sequence has one of them less.
    positions = jnp.array([[2, length // 2, length - 1], [0, length - 1, length]])
    is_shared = jnp.zeros((B, length + 1), bool).at[jnp.arange(B)[:, None], positions].set(True)
    is_shared = is_shared[:, :length]

    def take(x):
        return jnp.stack([row[index] for row, index in zip(x, positions, strict=True)])

    def blocked(q, k, v):
        segment_ids = jnp.where(positions < length, take(ids), -1)
        return local_attention(
            q, k, v, ids, radius=64, kv_segment_ids=jnp.where(is_shared, -1, ids),
            shared_keys=SharedKeys(take(k), take(v), segment_ids),
        )  # fmt: skip

    def dense(q, k, v):
        near = jnp.abs(jnp.arange(length)[:, None] - jnp.arange(length)) <= 64
        mask = (near | is_shared[:, None]) & (ids[:, :, None] == ids[:, None])
        scores = jnp.einsum("BQHK,BLHK->BHQL", q, k) / jnp.sqrt(jnp.float32(K))
        weights = jax.nn.softmax(scores, axis=-1, where=mask[:, None])
        return jnp.einsum("BHQL,BLHK->BQHK", weights, v)

    @functools.partial(jax.jit, static_argnums=0)
    def outputs(attention, q, k, v, grad):
        context, back = jax.vjp(attention, q, k, v)
        return (context, *back(grad))

    for one, other in zip(
        *(outputs(attention, q, k, v, grad) for attention in (blocked, dense)),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_work_grows_linearly_with_length():
    def flops(length):
        qkv = [jax.ShapeDtypeStruct((1, length, H, K), jnp.float32)] * 3
        ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
        run = jax.jit(functools.partial(local_attention, radius=64))
        cost: Any = run.lower(*qkv, ids).compile().cost_analysis()
        return cost["flops"]

    assert flops(4096) / flops(1024) == pytest.approx(4, rel=0.02)


def test_block_shapes():
    assert block_shape(8192, 64) == (128, 64)  # ModernBERT: windows of 256 keys
    assert block_shape(4096, 256) == (256, 256)  # Longformer: windows of 768 keys
    assert block_shape(256, 64) == (256, 0)
    assert block_shape(1024, 1) == (128, 64)


def test_dropout_has_the_mean_and_the_rate_of_the_dense_path():
    length, rate = 1024, 0.25
    q, k, _, _ = arrays(length)
    ids, seed = jnp.ones((B, length), jnp.int32), make_dropout_seeds(jax.random.key(7), ())
    # Queries of zero give equal weights, so the context of ones counts the weights that are kept.
    ones = jnp.ones((B, length, H, K))
    run = jax.jit(
        lambda v: local_attention(q * 0, k, v, ids, radius=64, dropout_rate=rate, dropout_seed=seed)
    )
    dropped = run(ones)[..., 0] * (1 - rate)
    inner = np.asarray(dropped)[:, 64:-64]  # all of these windows have 129 keys
    assert inner.mean() == pytest.approx(
        1 - rate, abs=4 * (rate * (1 - rate) / 129 / inner.size) ** 0.5
    )
    assert inner.var() == pytest.approx(rate * (1 - rate) / 129, rel=0.1)
    assert not np.array_equal(inner[0], inner[1]) and not np.array_equal(
        inner[..., 0], inner[..., 1]
    )
    blocks = inner[0, 64 : 64 + 128 * 6, 0].reshape(6, 128)
    assert np.abs(np.corrcoef(blocks) - np.eye(6)).max() < 0.5  # blocks do not share masks


def test_bfloat16_keeps_the_softmax_in_float32():
    *qkv, _ = arrays(300)
    ids = segments(300)
    run = jax.jit(functools.partial(local_attention, radius=64))
    context = run(*(x.astype(jnp.bfloat16) for x in qkv), ids)
    assert context.dtype == jnp.bfloat16
    rounded = [x.astype(jnp.bfloat16).astype(jnp.float32) for x in qkv]
    expected = dense_attention(rounded[0], rounded[1], rounded[2], ids, radius=64)
    np.testing.assert_allclose(context.astype(jnp.float32), expected, atol=0.03)
