"""Computes matrix products with operands in the compute dtype and float32 sums, both directions.

Autodiff of a bfloat16 product with a float32 result multiplies a float32 cotangent by a bfloat16
operand, which hardware cannot do in bfloat16; a bfloat16 result would lose digits of gradients. So
forward and backward are defined here: operands in `dtype`, sums in float32.

The order of operands and axes matters to XLA on CPU. Its library for AMX supports a bfloat16
product with a float32 result, but not one that contracts the rows of one matrix [N, D] with the
rows of another. A gradient that sums over two axes [B, L] is transposed first and is then
supported.
"""

import functools

import jax
import jax.numpy as jnp

from bert_jax.models.layers.dropout import DropoutSeed, dropout

_NARROW = 64
"""The gradient of a kernel with at most this many columns, such as `lora_a` or a classifier, is
computed as its transpose: on CPU, XLA takes several times as long for a product with few columns as
for one with few rows. Other devices are not measured."""

_einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def dense(x: jax.Array, kernel: jax.Array, bias: jax.Array | None, dtype: jnp.dtype) -> jax.Array:
    """Computes x [..., D] times a kernel [D, F] plus a bias [F] or None, float32 [..., F].

    The gradient of the kernel has the kernel's dtype.
    """
    return _dense(x, kernel, bias, 0, dtype)


def dense_transposed(
    x: jax.Array, table: jax.Array, bias: jax.Array | None, dtype: jnp.dtype
) -> jax.Array:
    """Computes x [..., D] times the transpose of a table [F, D] plus a bias, float32 [..., F].

    A table of embeddings has this shape. Its gradient has the dtype of the table. The bias is [F],
    or None.
    """
    return _dense(x, table, bias, 1, dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _dense(
    x: jax.Array, kernel: jax.Array, bias: jax.Array | None, axis: int, dtype: jnp.dtype
) -> jax.Array:
    """Computes the product over `axis` of the kernel, which is [D, F] for 0 and [F, D] for 1."""
    dims = (((x.ndim - 1,), (axis,)), ((), ()))
    product = _dot(x.astype(dtype), kernel.astype(dtype), dims)
    return product if bias is None else product + bias


def _dot(a: jax.Array, b: jax.Array, dims: jax.lax.DotDimensionNumbers) -> jax.Array:
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


_DenseResiduals = tuple[jax.Array, jax.Array, tuple[()] | None]


def _dense_fwd(
    x: jax.Array, kernel: jax.Array, bias: jax.Array | None, axis: int, dtype: jnp.dtype
) -> tuple[jax.Array, _DenseResiduals]:
    # Residuals are pytrees of arrays, so the last one is an empty tuple if there is a bias.
    return _dense(x, kernel, bias, axis, dtype), (x, kernel, None if bias is None else ())


def _dense_bwd(
    axis: int, dtype: jnp.dtype, residuals: _DenseResiduals, grad: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    x, kernel, bias_marker = residuals
    operand, d_y = x.astype(dtype), grad.astype(dtype)
    # Sums columns by a product: for V columns, XLA's own sum takes ten times as long on CPU.
    d_y_2d = d_y.reshape(-1, d_y.shape[-1])
    d_bias = None
    if bias_marker is not None:
        d_bias = jax.lax.dot_general(
            jnp.ones((d_y_2d.shape[0],), dtype),
            d_y_2d,
            (((0,), (0,)), ((), ())),
            precision=jax.lax.Precision.HIGHEST,  # TPUs must not round float32 operands here
            preferred_element_type=jnp.float32,
        )
    d_x = _dot(d_y, kernel.astype(dtype), (((d_y.ndim - 1,), (1 - axis,)), ((), ())))
    if dtype == jnp.float32:  # may contract rows with rows: see the top of this file
        operand, d_y = operand.reshape(-1, x.shape[-1]), d_y.reshape(d_y_2d.shape)
    batch_dims = tuple(range(d_y.ndim - 1))
    lhs, rhs = (operand, d_y) if axis == 0 else (d_y, operand)
    is_narrow = kernel.shape[1] <= _NARROW
    if is_narrow:
        lhs, rhs = rhs, lhs
    # Asks the product for the dtype of the kernel instead of casting its result, because the sum
    # over devices is taken of the product itself (`MeshConfig.communication_dtype`).
    dims = ((batch_dims, batch_dims), ((), ()))
    d_kernel = jax.lax.dot_general(lhs, rhs, dims, preferred_element_type=kernel.dtype)
    if is_narrow:
        # Without the barrier, XLA swaps the operands back.
        d_kernel = jax.lax.optimization_barrier(d_kernel).T
    return d_x.astype(x.dtype), d_kernel, d_bias


_dense.defvjp(_dense_fwd, _dense_bwd)


@jax.custom_vjp
def attention_scores(q_BQHK: jax.Array, k_BLHK: jax.Array) -> jax.Array:
    """Computes the products of each query with each key, float32 [B, H, Q, L]."""
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
def position_scores(x_BLHK: jax.Array, positions_OHK: jax.Array) -> jax.Array:
    """Computes the products of each query or key with O relative positions, [B, H, L, O].

    Like `attention_scores`, in float32, but all sequences have the same positions.
    """
    return _einsum("BLHK,OHK->BHLO", x_BLHK, positions_OHK)


def _position_scores_bwd(
    residuals: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, positions = residuals
    grad = grad.astype(x.dtype)
    d_x = _einsum("BHLO,OHK->BLHK", grad, positions)
    d_positions = _einsum("BHLO,BLHK->OHK", grad, x)
    return d_x.astype(x.dtype), d_positions.astype(positions.dtype)


position_scores.defvjp(lambda x, p: (position_scores(x, p), (x, p)), _position_scores_bwd)


@jax.custom_vjp
def attention_context(weights_BHQL: jax.Array, v_BLHK: jax.Array) -> jax.Array:
    """Sums values by attention weights, which are rounded to the values' dtype; [B, Q, H, K]."""
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


def softmax_attention(
    scores_BHQL: jax.Array,
    mask: jax.Array,
    v_BLHK: jax.Array,
    dropout_rate: float,
    dropout_seed: DropoutSeed | None,
) -> tuple[jax.Array, jax.Array]:
    """Computes the context of queries from their scaled scores.

    Args:
      scores_BHQL: float32.
      mask: bool, broadcastable to the scores: True where a query attends to a key.
      v_BLHK: the values.
      dropout_rate: the rate of the dropout of attention weights.
      dropout_seed: its seed; None applies no dropout.

    Returns:
      The context [B, Q, H, K] in the values' dtype, and the attention weights before dropout,
      float32 [B, H, Q, L].
    """
    weights = jax.nn.softmax(jnp.where(mask, scores_BHQL, jnp.finfo(jnp.float32).min), axis=-1)
    context = attention_context(dropout(weights, dropout_rate, dropout_seed), v_BLHK)
    return context.astype(v_BLHK.dtype), weights
