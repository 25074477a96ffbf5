"""Covers bert_jax/models/layers/matmul.py: products and gradients against autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.layers.matmul import (
    attention_context,
    attention_scores,
    dense,
    dense_transposed,
)

F32, BF16 = jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)


def normal(seed: int, shape: tuple[int, ...], dtype=F32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def results(function, arguments, weights):
    """Returns the value, and the gradients of its sum weighted by `weights`."""

    def both(*arguments):
        value, pull = jax.vjp(function, *arguments)
        return value, pull(weights.astype(value.dtype))

    return jax.jit(both)(*arguments)


def assert_close(found, expected, rtol):
    """Asserts that arrays are equal up to `rtol` times the largest element."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        b = np.asarray(b, np.float32)
        np.testing.assert_allclose(np.asarray(a, np.float32), b, rtol=0, atol=rtol * abs(b).max())


# A bfloat16 operand has an error of 2^-9, a sum of many a smaller one; results are float32.
PRECISION = [(F32, 1e-5), (BF16, 2e-2)]


@pytest.mark.parametrize(("dtype", "rtol"), PRECISION)
@pytest.mark.parametrize("product", [dense, dense_transposed])
@pytest.mark.parametrize("columns", [(24, 40), (72, 80)])  # narrow kernels have another order
@pytest.mark.parametrize("rows", [(), (6,), (1,), (2, 5), (3, 1), (8, 128)])
def test_dense_equals_autodiff(rows, columns, product, dtype, rtol):
    inputs, outputs = columns
    x, bias = normal(0, (*rows, inputs), dtype), normal(1, (outputs,))
    kernel = normal(2, columns if product is dense else columns[::-1])
    weights = normal(3, (*rows, outputs))

    def definition(x, kernel, bias):
        wide = x.astype(jnp.float32)
        return jnp.dot(wide, kernel if product is dense else kernel.T) + bias

    found = results(lambda *a: product(*a, dtype), (x, kernel, bias), weights)
    value, (d_x, d_kernel, d_bias) = found
    assert value.dtype == d_kernel.dtype == d_bias.dtype == F32 and d_x.dtype == dtype
    assert_close(found, results(definition, (x, kernel, bias), weights), rtol)


@pytest.mark.parametrize(("dtype", "rtol"), PRECISION)
@pytest.mark.parametrize("shape", [(2, 8, 2, 4), (3, 7, 2, 3), (1, 1, 1, 1), (2, 128, 12, 64)])
def test_attention_products_equal_autodiff(shape, dtype, rtol):
    B, L, H, _ = shape
    q, k, v = (normal(seed, shape, dtype) for seed in range(3))
    weights = jax.nn.softmax(normal(3, (B, H, L, L)))

    def definition_of_scores(q, k):
        return jnp.einsum("bqhk,blhk->bhql", q.astype(jnp.float32), k.astype(jnp.float32))

    def definition_of_context(weights, v):
        return jnp.einsum("bhql,blhk->bqhk", weights, v.astype(jnp.float32))

    by_score, by_context = normal(4, (B, H, L, L)), normal(5, shape)
    for function, definition, arguments, by in [
        (attention_scores, definition_of_scores, (q, k), by_score),
        (attention_context, definition_of_context, (weights, v), by_context),
    ]:
        found = results(function, arguments, by)
        assert found[0].dtype == F32
        assert [g.dtype for g in found[1]] == [a.dtype for a in arguments]
        assert_close(found, results(definition, arguments, by), rtol)


def test_gradients_of_bfloat16_products_are_float32():
    for outputs in (40, 80):
        x, kernel = normal(0, (4, 16, 24), BF16), normal(1, (24, outputs))
        _, (_, d_kernel, _) = results(
            lambda x, kernel, bias: dense(x, kernel, bias, BF16),
            (x, kernel, jnp.zeros((outputs,))),
            normal(2, (4, 16, outputs)),
        )
        assert not np.array_equal(d_kernel, d_kernel.astype(jnp.bfloat16).astype(jnp.float32))


@pytest.mark.parametrize("columns", [(24, 40), (72, 80)])
@pytest.mark.parametrize("product", [dense, dense_transposed])
def test_gradient_of_bfloat16_kernel_is_rounded_once(product, columns):
    inputs, outputs = columns
    x = normal(0, (4, 16, inputs), BF16)
    kernel = normal(1, columns if product is dense else columns[::-1], BF16)
    weights, bias = normal(2, (4, 16, outputs)), jnp.zeros((outputs,))

    def gradient(kernel):
        return results(lambda *a: product(*a, BF16), (x, kernel, bias), weights)[1][1]

    rounded = gradient(kernel.astype(F32)).astype(BF16)
    np.testing.assert_array_equal(gradient(kernel), rounded)
