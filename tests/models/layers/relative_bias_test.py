"""Covers bert_jax/models/layers/relative_bias.py: buckets, the shift of rows, the bias."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bert_jax.models.layers.relative_bias import (
    RelativePositionBias,
    relative_position_buckets,
    skew,
)

torch = pytest.importorskip("torch")
modeling_t5 = pytest.importorskip("transformers.models.t5.modeling_t5")


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("num_buckets, max_distance", [(32, 128), (8, 20), (64, 256)])
def test_buckets_are_those_of_hugging_face(num_buckets, max_distance, bidirectional):
    relative = np.arange(-2000, 2001)
    expected = modeling_t5.T5Attention._relative_position_bucket(
        torch.from_numpy(relative), bidirectional, num_buckets, max_distance
    )
    found = relative_position_buckets(
        relative,
        num_buckets=num_buckets,
        max_distance=max_distance,
        bidirectional=bidirectional,
    )
    np.testing.assert_array_equal(found, expected.numpy())
    # No key after the query is at distance 0.
    unused = {num_buckets // 2} if bidirectional else set()
    assert set(found) == set(range(num_buckets)) - unused


@pytest.mark.parametrize("length", [1, 2, 5])
def test_skew_selects_the_offset_of_each_query_and_key(length):
    values = np.random.default_rng(0).normal(size=(2, 3, length, 2 * length - 1))
    found = skew(jnp.asarray(values, jnp.float32))
    for i in range(length):
        for j in range(length):
            np.testing.assert_array_equal(
                found[..., i, j], values[..., i, j - i + length - 1].astype(np.float32)
            )


def test_bias_has_a_number_for_each_head_and_bucket():
    layer = RelativePositionBias(3, nnx.initializers.normal(0.02), nnx.Rngs(0))
    table, length = layer.bias[...], 140
    found = layer(length)
    assert found.shape == (1, 3, length, length) and found.dtype == jnp.float32
    distances = np.arange(length)[None] - np.arange(length)[:, None]
    expected = jnp.transpose(table[relative_position_buckets(distances)], (2, 0, 1))
    np.testing.assert_array_equal(found[0], expected)
    gradient = jax.grad(lambda t: jnp.sum(jnp.square(nnx_call(layer, t, length))))(table)
    expected_gradient = jax.grad(lambda t: jnp.sum(jnp.square(lookup(t, distances))))(table)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4)


def nnx_call(layer: RelativePositionBias, table: jax.Array, length: int) -> jax.Array:
    graph, _ = nnx.split(layer)
    return nnx.merge(graph, nnx.State({"bias": nnx.Param(table)}))(length)


def lookup(table: jax.Array, distances: np.ndarray) -> jax.Array:
    return table[relative_position_buckets(distances)]
