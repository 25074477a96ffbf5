"""Covers layers/fused_attention.py and pallas_attention.py: the kernel equals plain attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bert_jax.batch import BATCH_AXES
from bert_jax.models.layers import fused_attention, pallas_attention
from bert_jax.models.layers.dropout import make_dropout_seeds
from bert_jax.models.layers.fused_attention import AttentionParams, reference_attention

B, L = 8, 128


def arrays(heads: int, head_width: int, packed: bool):
    """Returns q, k, v, segment ids of queries and keys, sequence indices, seed, gradient."""
    width = heads * head_width
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, grad = (jax.random.normal(key, (B, L, width), jnp.float32) for key in keys)
    if packed:
        ids = jnp.sort(jax.random.randint(jax.random.key(1), (B, L), 0, 4), axis=1)
        query_ids = key_ids = ids
    else:
        lengths = jnp.array([[100], [128], [1], [64], [7], [128], [90], [33]])
        query_ids = jnp.ones((B, L), jnp.int32)
        key_ids = (jnp.arange(L)[None] < lengths).astype(jnp.int32)
    seed = make_dropout_seeds(jax.random.key(3), ())
    return (q, k, v, query_ids, key_ids, jnp.arange(B, dtype=jnp.int32), seed), grad


# Each value is in one of the two fast tests: the kernel is interpreted, which takes seconds.
@pytest.mark.parametrize(
    "rate, heads, head_width, packed",
    [
        pytest.param(
            *(rate, heads, head_width, packed),
            id=f"{rate}-{heads}-{head_width}-{'packed' if packed else 'padded'}",
            marks=[] if (rate > 0) == (heads == 4) == packed else [pytest.mark.slow],
        )
        for rate in (0.0, 0.1)
        for heads, head_width in ((2, 64), (4, 32))
        for packed in (False, True)
    ],
)
def test_kernel_outputs_and_gradients_equal_plain_attention(packed, heads, head_width, rate):
    inputs, grad = arrays(heads, head_width, packed)
    shape = AttentionParams(heads, rate)
    q, k, v, *rest = inputs
    plain, back = jax.vjp(lambda q, k, v: reference_attention(shape, q, k, v, *rest), q, k, v)
    run = functools.partial(
        pallas_attention.forward, num_heads=heads, dropout_rate=rate, interpret=True
    )
    context, log_sums = run(*inputs)
    np.testing.assert_allclose(context, plain, atol=2e-6, rtol=1e-5)
    run = functools.partial(
        pallas_attention.backward, num_heads=heads, dropout_rate=rate, interpret=True
    )
    for found, expected in zip(run(*inputs, context, log_sums, grad), back(grad), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)


def test_each_device_computes_its_part_of_the_batch(monkeypatch):
    """Tests the partitioned kernel on 8 devices: one sequence each, with the masks of the batch."""
    for name in ("forward", "backward"):
        whole = getattr(pallas_attention, name)
        monkeypatch.setattr(pallas_attention, name, functools.partial(whole, interpret=True))
    monkeypatch.setattr(fused_attention, "_on_platform", lambda tpu, default: tpu)
    fused_attention._make_forward.cache_clear()
    fused_attention._make_backward.cache_clear()
    inputs, grad = arrays(2, 64, packed=True)
    shape = AttentionParams(2, 0.1)
    q, k, v, query_ids, key_ids, rows, seed = inputs

    def step(q, k, v, grad):
        out, back = jax.vjp(
            lambda q, k, v: fused_attention.fused_attention(
                shape, q, k, v, query_ids, key_ids, seed
            ),
            q,
            k,
            v,
        )
        return (out, *back(grad))

    mesh = jax.make_mesh((4, 2), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    batch_sharding = NamedSharding(mesh, PartitionSpec(BATCH_AXES))
    placed = [jax.device_put(x, batch_sharding) for x in (q, k, v, grad)]
    try:
        with jax.set_mesh(mesh):
            compiled = jax.jit(step).lower(*placed).compile()
        found = compiled(*placed)
    finally:
        fused_attention._make_forward.cache_clear()
        fused_attention._make_backward.cache_clear()
    assert "all-gather" not in (compiled.as_text() or "all-gather")
    assert found[0].sharding.is_equivalent_to(batch_sharding, 3)
    plain, back = jax.vjp(
        lambda q, k, v: reference_attention(shape, q, k, v, query_ids, key_ids, rows, seed), q, k, v
    )
    for one, other in zip(found, (plain, *back(grad)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5)


def test_unsupported_shapes():
    assert pallas_attention.is_supported(512, 768, 12) and pallas_attention.is_supported(
        128, 384, 12
    )
    assert not pallas_attention.is_supported(1024, 768, 12)  # too long
    assert not pallas_attention.is_supported(130, 768, 12)  # not a multiple of the lanes
    assert not pallas_attention.is_supported(128, 768, 8)  # heads of 96


def test_tpu_v2_and_v3_get_float32_operands():
    for kind in ("TPU v2", "TPU v3"):
        assert pallas_attention.operand_dtype("bfloat16", kind) == "float32"
    assert pallas_attention.operand_dtype("bfloat16", "TPU v4") == "bfloat16"
