"""Covers attention by `jax.nn.dot_product_attention` (bert_jax/models/layers/attention.py).

cuDNN's kernel needs a GPU; here the same call runs with the implementation "xla".
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.layers import attention
from bert_jax.models.layers.attention import (
    AttentionMask,
    SelfAttention,
    library_attention,
    make_attention_mask,
)
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import make_dropout_seeds
from bert_jax.models.layers.matmul import attention_scores, softmax_attention

B, L, H, K = 3, 32, 4, 8
PADDED = (jnp.arange(L) < jnp.array([[L], [20], [1]])).astype(jnp.int32)
PACKED = jnp.sort(jax.random.randint(jax.random.key(1), (B, L), 0, 4), axis=1)
BFLOAT16 = ComputeConfig(attention="cudnn", dtype="bfloat16")
MASKS = {
    "padded": make_attention_mask(PADDED, None, False),
    "packed": make_attention_mask(PADDED, PACKED, False),
    "causal": make_attention_mask(PADDED, None, True),
    "causal rows": make_attention_mask(PADDED, None, jnp.array([True, False, True])),
    "window": dataclasses.replace(make_attention_mask(PADDED, None, False), radius=5),
    "causal window": dataclasses.replace(make_attention_mask(PADDED, None, True), radius=5),
    "packed window": dataclasses.replace(make_attention_mask(PADDED, PACKED, False), radius=5),
}


def own_attention(q, k, v, mask: AttentionMask) -> jax.Array:
    """Computes the context as `compute.attention="xla"` does with all L x L scores."""
    k, v = (jnp.repeat(x, H // x.shape[2], axis=2) for x in (k, v))
    return softmax_attention(attention_scores(q * K**-0.5, k), mask.mask_BHQK(), v, 0.0, None)[0]


@pytest.mark.parametrize("num_kv_heads", [H, 2])
@pytest.mark.parametrize("name", MASKS)
def test_context_and_gradients_equal_own_attention(name, num_kv_heads):
    mask, keys = MASKS[name], jax.random.split(jax.random.key(0), 4)
    heads = (H, num_kv_heads, num_kv_heads, H)
    q, k, v, grad = (
        jax.random.normal(key, (B, L, n, K)) for key, n in zip(keys, heads, strict=True)
    )
    # In a window, padding has no context: no query reads it.
    is_read = PADDED[:, :, None, None] == 1 if "window" in name and "packed" not in name else True
    grad = jnp.where(is_read, grad, 0)
    found, back = jax.vjp(lambda q, k, v: library_attention(q, k, v, mask, "xla"), q, k, v)
    expected, own_back = jax.vjp(lambda q, k, v: own_attention(q, k, v, mask), q, k, v)
    np.testing.assert_allclose(
        jnp.where(is_read, found, 0), jnp.where(is_read, expected, 0), rtol=1e-5, atol=1e-5
    )
    for one, other in zip(back(grad), own_back(grad), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_padding_that_is_not_at_the_end_gives_nan_in_its_sequence_only():
    q = jnp.ones((2, 4, 1, 8))
    mask = make_attention_mask(jnp.array([[1, 0, 1, 1], [1, 1, 1, 0]]), None, False)
    is_nan = jnp.isnan(library_attention(q, q, q, mask, "xla")).any(axis=(1, 2, 3))
    assert is_nan.tolist() == [True, False]


def test_empty_sequence_has_a_finite_context():
    q, mask = jnp.ones((1, 4, 1, 8)), make_attention_mask(jnp.zeros((1, 4), jnp.int32), None, True)
    for radius in (None, 2):
        masked = dataclasses.replace(mask, radius=radius)
        assert jnp.isfinite(library_attention(q, q, q, masked, "xla")).all()


@pytest.mark.parametrize(
    "name, rate, changes, uses_library",
    [
        ("padded", 0.0, {}, True),
        ("padded", 0.1, {}, False),  # cuDNN's function has no dropout
        ("padded", 0.0, {"bias": jnp.zeros((1, H, L, L))}, False),
        ("window", 0.0, {}, False),  # cuDNN has no window on both sides
        ("causal window", 0.0, {}, True),
    ],
)
def test_layer_uses_the_library_where_it_can(monkeypatch, name, rate, changes, uses_library):
    calls = []

    def counted(q, k, v, mask):
        calls.append(mask)
        return library_attention(q, k, v, mask, "xla")

    monkeypatch.setattr(attention, "library_attention", counted)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    config = BertConfig(
        vocab_size=16, hidden_size=H * K, num_attention_heads=H, attention_probs_dropout_prob=rate
    )
    x = jax.random.normal(jax.random.key(2), (B, L, H * K)).astype(jnp.bfloat16)
    mask, seed = (
        dataclasses.replace(MASKS[name], **changes),
        make_dropout_seeds(jax.random.key(3), ()),
    )
    layer = SelfAttention(config, BFLOAT16, nnx.Rngs(0))
    found = layer(x, mask, seed)[0]
    assert bool(calls) == uses_library
    layer.implementation = "xla"
    expected = layer(x, mask, seed)[0]
    is_read = np.asarray(PADDED == 1)
    np.testing.assert_allclose(
        np.asarray(found, np.float32)[is_read], np.asarray(expected, np.float32)[is_read], atol=0.02
    )
    layer.implementation = "cudnn"
    assert layer(x, mask, None, return_attention_weights=True)[1] is not None
    assert len(calls) == uses_library


def test_cudnn_without_a_gpu_names_the_devices_and_the_field():
    config = BertConfig(vocab_size=16, hidden_size=8, num_attention_heads=1)
    layer = SelfAttention(config, BFLOAT16, nnx.Rngs(0))
    mask = make_attention_mask(jnp.ones((1, 4), jnp.int32), None, False)
    with pytest.raises(
        ConfigError, match=r"NVIDIA GPU, but the devices are cpu; set compute.atten"
    ):
        layer(jnp.ones((1, 4, 8), jnp.bfloat16), mask, None)


def test_cudnn_in_float32_is_an_error_of_the_config():
    with pytest.raises(ConfigError, match=r"set compute.dtype=bfloat16, or compute.attention=xla"):
        ComputeConfig(attention="cudnn")
