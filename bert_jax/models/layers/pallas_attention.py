"""Computes self-attention of short sequences in one Pallas kernel for TPUs.

All scores of a head, [L, L], fit into the memory of a core (VMEM), so the kernel needs no running
maxima, and the backward pass recomputes the scores instead of reading them. No array of size L x L
is written to the memory of the device (HBM). Padding, packing and dropout are applied in the
kernel; the dropout mask is as in `dropout.py`, element for element. The bodies of the kernels are
in `pallas_attention_kernels.py`.

Arrays stay [B, L, D], as the projections compute them. One program of the grid reads 128 lanes of
one sequence, which are 128 / K heads.

FlashAttention (Dao et al. 2022) was the first fused kernel for attention.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.models.layers.dropout import DropoutSeed, row_keys
from bert_jax.models.layers.pallas_attention_kernels import (
    LANES,
    KernelShape,
    backward_kernel,
    forward_kernel,
)

MAX_LENGTH = 512
"""The longest sequence: four score matrices of a longer one do not fit into VMEM."""
FORWARD, BACKWARD = "attention_forward", "attention_backward"
"""The names of the kernels in a compiled program."""
_FLOAT32_ONLY = ("TPU v2", "TPU v3")


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
        forward_kernel,
        FORWARD,
        KernelShape(num_heads, width // num_heads, dropout_rate),
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
        backward_kernel,
        BACKWARD,
        KernelShape(num_heads, width // num_heads, dropout_rate),
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
    shape: KernelShape,
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
