"""Matrix products with operands in the compute dtype and float32 sums, forward and backward.

Autodiff of a bfloat16 product with a float32 result multiplies a float32 cotangent with a bfloat16
operand, which no hardware does in bfloat16; and a bfloat16 result throws digits of gradients away.
So both directions are written down here: operands in `dtype`, sums in float32.

The order of operands and the axes matter to XLA on CPU: its library for AMX takes a bfloat16
product with a float32 result, but not one that contracts the rows of a matrix [N, D] with those of
another. A gradient that sums over rows as two axes [B, L] is laid out anew first, and then fits.
"""

import functools

import jax
import jax.numpy as jnp

_einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def dense(
    x: jax.Array, kernel: jax.Array, bias: jax.Array, axis: int, dtype: jnp.dtype
) -> jax.Array:
    """x [..., D] times kernel [D, F] (`axis` 0) or [F, D] (`axis` 1), plus bias [F].

    Returns float32 [..., F]. The gradient of the kernel has the kernel's own dtype.
    """
    dims = (((x.ndim - 1,), (axis,)), ((), ()))
    return _dot(x.astype(dtype), kernel.astype(dtype), dims) + bias


def _dot(a: jax.Array, b: jax.Array, dims: jax.lax.DotDimensionNumbers) -> jax.Array:
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _dense_fwd(
    x: jax.Array, kernel: jax.Array, bias: jax.Array, axis: int, dtype: jnp.dtype
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return dense(x, kernel, bias, axis, dtype), (x, kernel)


def _dense_bwd(
    axis: int, dtype: jnp.dtype, residuals: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, kernel = residuals
    operand, d_y = x.astype(dtype), grad.astype(dtype)
    # Summing columns as a product: XLA's column sum on CPU takes ten times as long for V columns.
    d_y_2d = d_y.reshape(-1, d_y.shape[-1])
    d_bias = jax.lax.dot_general(
        jnp.ones((d_y_2d.shape[0],), dtype),
        d_y_2d,
        (((0,), (0,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST,  # float32 stays float32 on TPUs; for bfloat16 nothing
        preferred_element_type=jnp.float32,
    )
    d_x = _dot(d_y, kernel.astype(dtype), (((d_y.ndim - 1,), (1 - axis,)), ((), ())))
    if dtype == jnp.float32:  # here the rows need no new layout: see the top of this file
        operand, d_y = operand.reshape(-1, x.shape[-1]), d_y.reshape(d_y_2d.shape)
    batch_dims = tuple(range(d_y.ndim - 1))
    operands = (operand, d_y) if axis == 0 else (d_y, operand)
    # The product's own result, not a cast of it: devices sum what a product gives (`exchange`).
    dims = ((batch_dims, batch_dims), ((), ()))
    d_kernel = jax.lax.dot_general(*operands, dims, preferred_element_type=kernel.dtype)
    return d_x.astype(x.dtype), d_kernel, d_bias


dense.defvjp(_dense_fwd, _dense_bwd)


@jax.custom_vjp
def attention_scores(q_BQHK: jax.Array, k_BLHK: jax.Array) -> jax.Array:
    """Products of each query with each key, float32 [B, H, Q, L]."""
    return _einsum("BQHK,BLHK->BHQL", q_BQHK, k_BLHK)


def _attention_scores_bwd(
    residuals: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    q, k = residuals
    grad = grad.astype(q.dtype)
    d_q = _einsum("BHQL,BLHK->BQHK", grad, k)
    d_k = _einsum("BHQL,BQHK->BLHK", grad, q)
    return d_q.astype(q.dtype), d_k.astype(k.dtype)


attention_scores.defvjp(lambda q, k: (attention_scores(q, k), (q, k)), _attention_scores_bwd)


@jax.custom_vjp
def attention_context(weights_BHQL: jax.Array, v_BLHK: jax.Array) -> jax.Array:
    """Sums of values by float32 weights, rounded to the values' dtype: float32 [B, Q, H, K]."""
    return _einsum("BHQL,BLHK->BQHK", weights_BHQL.astype(v_BLHK.dtype), v_BLHK)


def _attention_context_bwd(
    residuals: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    weights, v = residuals
    grad = grad.astype(v.dtype)
    d_weights = _einsum("BQHK,BLHK->BHQL", grad, v)
    d_v = _einsum("BHQL,BQHK->BLHK", weights, grad)
    return d_weights, d_v.astype(v.dtype)


def _attention_context_fwd(
    weights: jax.Array, v: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return attention_context(weights, v), (weights.astype(v.dtype), v)


attention_context.defvjp(_attention_context_fwd, _attention_context_bwd)
