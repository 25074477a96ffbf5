"""Covers bert_jax/models/layers/linear.py: lookups and their float32 gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config.train import MeshConfig
from bert_jax.models.layers.linear import embedding_lookup
from bert_jax.parallel import sharding

V, D = 50, 8


def arrays(dtype):
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.standard_normal((V, D)), dtype)
    # Zipf's law: the first word fills a third of the text.
    ids = jnp.asarray(np.minimum(rng.zipf(1.3, (64, 128)) - 1, V - 1), jnp.int32)
    grad = jnp.asarray(1 + rng.standard_normal((64, 128, D)), jnp.float32)
    return table, ids, grad


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("devices", [None, MeshConfig(), MeshConfig(data=2, fsdp=2, tensor=2)])
def test_gradient_is_summed_in_float32(devices, dtype):
    table, ids, grad = arrays(dtype)

    def pull(table, ids, grad):
        value, back = jax.vjp(lambda table: embedding_lookup(table, ids), table)
        return value, back(grad)[0]

    if devices is None:
        value, found = jax.jit(pull)(table, ids, grad)
    else:
        mesh = sharding.make_mesh(devices)
        rows = sharding.batch_sharding(mesh)
        with jax.set_mesh(mesh):
            cut = jax.jit(pull, in_shardings=(sharding.replicated(mesh), rows, rows))
            value, found = cut(table, ids, grad)
    expected = np.zeros((V, D))
    np.add.at(expected, np.asarray(ids), np.asarray(grad, np.float64))
    assert value.dtype == jnp.float32 and found.dtype == table.dtype
    np.testing.assert_array_equal(value, np.asarray(table, np.float32)[np.asarray(ids)])
    # Eight devices round their own sums in the table's dtype, and then the sum of those.
    rtol = 1e-5 if dtype == "float32" else 2e-2
    scale = abs(expected).max(axis=1, keepdims=True)
    assert (abs(np.asarray(found, np.float64) - expected) <= rtol * scale).all()


def test_id_outside_the_table_gives_nan():
    table, _, _ = arrays("float32")
    assert np.isnan(embedding_lookup(table, jnp.asarray([[V]]))).all()
