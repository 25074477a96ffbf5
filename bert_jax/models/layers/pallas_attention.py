"""Computes self-attention of short sequences in one Pallas kernel for TPUs.

All scores of a head, [L, L], fit into the memory of a core (VMEM), so the kernel needs no running
maxima, and the backward pass recomputes the scores instead of reading them. No array of size L x L
is written to the memory of the device (HBM). Padding, packing and dropout are applied in the
kernel; the dropout mask is as in `dropout.py`, element for element.

Arrays stay [B, L, D], as the projections compute them. One program of the grid reads 128 lanes of
one sequence, which are 128 / K heads. It selects a head by setting the other lanes to zero, which
is free because the matrix unit multiplies 128 lanes at a time. The backward kernel has keys as rows
and queries as columns: the values of a query then lie along the lanes, and no product has to
transpose an [L, L] operand first.

No library has dropout in such a kernel, and jax's splash attention takes more than twice as long by
the compiler's schedule (docs/performance.md, "Attention on TPUs").

FlashAttention (Dao et al. 2022) was the first fused kernel for attention.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.models.layers.dropout import (
    ELEMENTS_PER_HASH,
    DropoutSeed,
    column_keys,
    finalize_hash,
    keep_from_bits,
    quantized_rate,
    row_keys,
)

LANES = 128
MAX_LENGTH = 512
"""The longest sequence: four score matrices of a longer one do not fit into VMEM."""
FORWARD, BACKWARD = "attention_forward", "attention_backward"
"""The names of the kernels in a compiled program."""
_FLOAT32_ONLY = ("TPU v2", "TPU v3")
_MASK_VALUE = -1e30


class _KernelShape(NamedTuple):
    """Holds the static parameters of a kernel."""

    num_heads: int
    head_width: int
    dropout_rate: float


def is_supported(length: int, width: int, num_heads: int) -> bool:
    """Returns whether the kernel supports sequences of this length, width D and number of heads."""
    head_width = width // num_heads
    return (
        length % LANES == 0
        and length <= MAX_LENGTH
        and LANES % head_width == 0
        and width % LANES == 0
    )


def operand_dtype(dtype: str, device_kind: str) -> str:
    """Returns the dtype of the kernel's operands on a device for a compute dtype.

    Pallas has no bfloat16 products for TPU v2 and v3.
    """
    return "float32" if device_kind in _FLOAT32_ONLY else dtype


def forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    q_segment_ids: jax.Array,
    kv_segment_ids: jax.Array,
    batch_indices: jax.Array,
    seed: DropoutSeed,
    *,
    num_heads: int,
    dropout_rate: float,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Computes attention.

    Args:
      q, k, v: [B, L, D], H heads of width K = D / H; queries are not scaled yet.
      q_segment_ids, kv_segment_ids: int32 [B, L]; a query attends to the keys that have its id.
      batch_indices: int32 [B], the index of each sequence in the whole batch, for its dropout.
      seed: the seed of dropout; not used if `dropout_rate` is 0.
      interpret: runs the kernel on any platform, slowly.

    Returns:
      The context [B, L, D], and for `backward` the log of the sum of the exponentials of each
      query's scores, float32 [B, D / 128, 128 / K, L].
    """
    batch, length, width = q.shape
    heads_per_block = LANES * num_heads // width
    qkv_spec, column_spec, row_spec, logsumexp_spec = _block_specs(length, heads_per_block)
    logsumexp = jax.ShapeDtypeStruct((batch, width // LANES, heads_per_block, length), jnp.float32)
    return _call_kernel(
        _forward_kernel,
        FORWARD,
        _KernelShape(num_heads, width // num_heads, dropout_rate),
        _scalars(seed, batch_indices),
        {
            "q": (q, qkv_spec),
            "k": (k, qkv_spec),
            "v": (v, qkv_spec),
            "q_segment_ids": (q_segment_ids[:, :, None], column_spec),
            "kv_segment_ids": (kv_segment_ids[:, None, :], row_spec),
            "dropout_row_keys": (
                row_keys(jax.lax.broadcasted_iota(jnp.uint32, (length, 1), 0), seed),
                _constant_spec((length, 1)),
            ),
        },
        out_specs=[qkv_spec, logsumexp_spec],
        out_shape=[jax.ShapeDtypeStruct(q.shape, q.dtype), logsumexp],
        interpret=interpret,
    )


def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    q_segment_ids: jax.Array,
    kv_segment_ids: jax.Array,
    batch_indices: jax.Array,
    seed: DropoutSeed,
    context: jax.Array,
    logsumexp: jax.Array,
    grad: jax.Array,
    *,
    num_heads: int,
    dropout_rate: float,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes the gradients of q, k and v from `grad`, the context's gradient; all [B, L, D].

    The other arguments and `logsumexp` are as in `forward`.
    """
    _, length, width = q.shape
    qkv_spec, column_spec, row_spec, logsumexp_spec = _block_specs(
        length, LANES * num_heads // width
    )
    return _call_kernel(
        _backward_kernel,
        BACKWARD,
        _KernelShape(num_heads, width // num_heads, dropout_rate),
        _scalars(seed, batch_indices),
        {
            "q": (q, qkv_spec),
            "k": (k, qkv_spec),
            "v": (v, qkv_spec),
            "q_segment_ids": (q_segment_ids[:, None, :], row_spec),
            "kv_segment_ids": (kv_segment_ids[:, :, None], column_spec),
            "dropout_row_keys": (
                row_keys(jax.lax.broadcasted_iota(jnp.uint32, (1, length), 1), seed),
                _constant_spec((1, length)),
            ),
            "context": (context, qkv_spec),
            "logsumexp": (logsumexp, logsumexp_spec),
            "grad": (grad, qkv_spec),
        },
        out_specs=[qkv_spec] * 3,
        out_shape=[jax.ShapeDtypeStruct(q.shape, q.dtype)] * 3,
        scratch_shapes=[pltpu.VMEM((length, LANES), jnp.float32)] * 2,
        interpret=interpret,
    )


def _call_kernel(
    kernel: Callable[..., None],
    name: str,
    shape: _KernelShape,
    prefetched: jax.Array,
    operands: Mapping[str, tuple[jax.Array, pl.BlockSpec]],
    *,
    out_specs: Sequence[pl.BlockSpec],
    out_shape: Sequence[jax.ShapeDtypeStruct],
    scratch_shapes: Sequence[Any] = (),
    interpret: bool,
) -> Any:
    """Runs a kernel on a grid of (sequence, block of 128 lanes).

    Args:
      prefetched: uint32 scalars that all programs of the grid read.
      operands: each operand of the kernel with the block of it that a program reads, in the order
        of the kernel's parameters.
    """
    batch, _, width = operands["q"][0].shape
    return pl.pallas_call(
        functools.partial(kernel, shape=shape),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, width // LANES),
            in_specs=[spec for _, spec in operands.values()],
            out_specs=out_specs,
            scratch_shapes=scratch_shapes,
        ),
        out_shape=out_shape,
        # Programs do not depend on each other, so that the two cores of a v4 or v5p chip share
        # the grid.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        interpret=interpret,
        name=name,
    )(prefetched, *[operand for operand, _ in operands.values()])


def _block_specs(length: int, heads_per_block: int) -> tuple[pl.BlockSpec, ...]:
    """Returns what a program reads of [B, L, D], [B, L, 1], [B, 1, L] and [B, D/128, heads, L]."""
    return (
        pl.BlockSpec((1, length, LANES), lambda b, g, _: (b, 0, g)),
        pl.BlockSpec((1, length, 1), lambda b, g, _: (b, 0, 0)),
        pl.BlockSpec((1, 1, length), lambda b, g, _: (b, 0, 0)),
        pl.BlockSpec((1, 1, heads_per_block, length), lambda b, g, _: (b, g, 0, 0)),
    )


def _constant_spec(shape: tuple[int, int]) -> pl.BlockSpec:
    return pl.BlockSpec(shape, lambda b, g, _: (0, 0))


def _scalars(seed: DropoutSeed, batch_indices: jax.Array) -> jax.Array:
    return jnp.concatenate([seed, batch_indices.astype(jnp.uint32)])


def _forward_kernel(
    prefetched: Any,
    q: Any,
    k: Any,
    v: Any,
    q_segment_ids: Any,
    kv_segment_ids: Any,
    dropout_row_keys: Any,
    out: Any,
    logsumexp: Any,
    *,
    shape: _KernelShape,
) -> None:
    scale = jnp.asarray(shape.head_width**-0.5, q.dtype)
    mask_bias = _mask_bias(q_segment_ids, kv_segment_ids)
    context = logsumexp_cols = jnp.zeros(out.shape[1:], jnp.float32)
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    for head_index, head_lanes in _heads_in_block(shape.head_width):
        scores = _dot(_select_lanes(head_lanes, q[0] * scale), k[0], 1, 1) + mask_bias
        row_max = jnp.max(scores, axis=1, keepdims=True)
        exp_scores = jnp.exp(scores - row_max)
        row_sum = jnp.sum(exp_scores, axis=1, keepdims=True)
        logsumexp_cols = jnp.where(lane == head_index, row_max + jnp.log(row_sum), logsumexp_cols)
        if shape.dropout_rate:
            exp_scores = jnp.where(
                _dropout_keep_mask(prefetched, dropout_row_keys, head_index, 1, shape),
                exp_scores,
                jnp.float32(0),
            )
        # Divides rows by their sums after the product, where a row has K numbers instead of L.
        inv_row_sum = 1 / ((1 - quantized_rate(shape.dropout_rate)) * row_sum)
        context += (
            _dot(exp_scores.astype(v.dtype), _select_lanes(head_lanes, v[0]), 1, 0) * inv_row_sum
        )
    logsumexp[0, 0] = logsumexp_cols.T[: logsumexp.shape[2]]
    out[0] = context.astype(out.dtype)


def _backward_kernel(
    prefetched: Any,
    q: Any,
    k: Any,
    v: Any,
    q_segment_ids: Any,
    kv_segment_ids: Any,
    dropout_row_keys: Any,
    context: Any,
    logsumexp: Any,
    grad: Any,
    d_q: Any,
    d_k: Any,
    d_v: Any,
    d_k_sum: Any,
    d_v_sum: Any,
    *,
    shape: _KernelShape,
) -> None:
    dtype = q.dtype
    scale = jnp.asarray(shape.head_width**-0.5, dtype)
    inv_keep = 1 / (1 - quantized_rate(shape.dropout_rate))
    mask_bias = _mask_bias(q_segment_ids, kv_segment_ids)
    # The derivative of softmax subtracts the mean gradient of each query, which is the product of
    # the context with its gradient.
    grad_times_context = grad[0].astype(jnp.float32) * context[0].astype(jnp.float32)
    k_t, grad_times_context, d_q_parts = k[0].T, grad_times_context.T, []
    d_k_sum[...] = jnp.zeros_like(d_k_sum)
    d_v_sum[...] = jnp.zeros_like(d_v_sum)
    for head_index, head_lanes in _heads_in_block(shape.head_width):
        q_head, grad_head = (
            _select_lanes(head_lanes, q[0] * scale),
            _select_lanes(head_lanes, grad[0]),
        )
        head_slice = slice(head_index * shape.head_width, (head_index + 1) * shape.head_width)
        mean = jnp.sum(grad_times_context[head_slice], axis=0, keepdims=True) * (1 / inv_keep)
        weights = jnp.exp(
            _dot(k[0], q_head, 1, 1) + mask_bias - logsumexp[0, 0, head_index : head_index + 1]
        )
        dropped_weights, d_weights = weights, _dot(v[0], grad_head, 1, 1)
        if shape.dropout_rate:
            keep = _dropout_keep_mask(prefetched, dropout_row_keys, head_index, 0, shape)
            dropped_weights = jnp.where(keep, weights, jnp.float32(0))
            d_weights = jnp.where(keep, d_weights, jnp.float32(0))
        d_scores = (weights * (d_weights - mean)).astype(dtype)
        d_v_sum[...] += _dot(dropped_weights.astype(dtype), grad_head, 1, 0)
        d_k_sum[...] += _dot(d_scores, q_head, 1, 0)
        d_q_parts.append(_dot(k_t[head_slice], d_scores, 1, 0))
    d_q[0] = (jnp.concatenate(d_q_parts).T * (inv_keep * scale.astype(jnp.float32))).astype(dtype)
    d_k[0] = (d_k_sum[...] * inv_keep).astype(dtype)
    d_v[0] = (d_v_sum[...] * inv_keep).astype(dtype)


def _heads_in_block(head_width: int) -> list[tuple[int, jax.Array]]:
    """Returns (index among the heads of these lanes, its lanes as bool [1, 128]) of each head."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    return [
        (head_index, (lane >= head_index * head_width) & (lane < (head_index + 1) * head_width))
        for head_index in range(LANES // head_width)
    ]


def _select_lanes(head_lanes: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(head_lanes, x, jnp.zeros((), x.dtype))


def _mask_bias(q_segment_ids: Any, kv_segment_ids: Any) -> jax.Array:
    return jnp.where(
        q_segment_ids[0] == kv_segment_ids[0], jnp.float32(0), jnp.float32(_MASK_VALUE)
    )


def _dot(a: jax.Array, b: jax.Array, axis_a: int, axis_b: int) -> jax.Array:
    dims = (((axis_a,), (axis_b,)), ((), ()))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _dropout_keep_mask(
    prefetched: Any,
    dropout_row_keys: Any,
    head_index: int,
    axis: int,
    shape: _KernelShape,
) -> jax.Array:
    """Returns this head's part, bool [L, L], of `dropout.keep_mask((B, H, L, L), ...)`.

    Args:
      dropout_row_keys: the keys of the mask's rows, [L, 1] or [1, L].
      axis: the axis of the result on which the columns of the mask lie.
    """
    part_width = max(dropout_row_keys.shape) // ELEMENTS_PER_HASH
    batch_index = prefetched[2 + pl.program_id(0)]
    head = (pl.program_id(1) * (LANES // shape.head_width) + head_index).astype(jnp.uint32)
    # Only the first `part_width` columns are used.
    column = jax.lax.broadcasted_iota(jnp.uint32, (1, LANES), 1)
    index = (batch_index * jnp.uint32(shape.num_heads) + head) * jnp.uint32(part_width) + column
    seed = (prefetched[0], prefetched[1])
    column_hash_keys = column_keys(index, seed)  # type: ignore[arg-type]
    if axis == 0:
        # Computed as a row and transposed; computing a column would take 16 times the products.
        square = jnp.broadcast_to(column_hash_keys, (LANES, LANES))
        transposed = jax.lax.bitcast_convert_type(square, jnp.float32).T
        column_hash_keys = jax.lax.bitcast_convert_type(transposed[:part_width, :1], jnp.uint32)
    else:
        column_hash_keys = column_hash_keys[:, :part_width]
    hashes = finalize_hash(dropout_row_keys[...] + column_hash_keys)
    # Concatenated before the comparison: Pallas cannot concatenate narrow arrays of bool.
    bytes_of = [hashes << jnp.uint32(24 - 8 * byte) for byte in range(ELEMENTS_PER_HASH)]
    return keep_from_bits(jnp.concatenate(bytes_of, axis=axis), shape.dropout_rate)
