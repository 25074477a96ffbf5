"""Attention that keeps nothing of size L x L for the backward pass, on one device or on many.

On TPUs it is the kernel of `attention_kernel.py`; elsewhere the same numbers come from plain
operations, computed once more for the gradient. XLA cannot cut a kernel up, so it is told how:
rows of the batch are apart from each other, and every device of the mesh that is set
(`jax.set_mesh`) does its own.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bert_jax.batch import BATCH_AXES
from bert_jax.models.layers import pallas_attention
from bert_jax.models.layers.dropout import DropoutSeed, dropout
from bert_jax.models.layers.matmul import attention_context, attention_scores

Arrays = tuple[jax.Array, ...]
SEED_ARG_INDEX = 6
"""The place of the seed among a kernel's arguments; all others have as many rows as the batch."""


class AttentionParams(NamedTuple):
    """What a compiled attention depends on besides its arrays' shapes."""

    num_heads: int
    dropout_rate: float


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def fused_attention(
    attention_params: AttentionParams,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    q_segment_ids: jax.Array,
    kv_segment_ids: jax.Array,
    seed: DropoutSeed,
) -> jax.Array:
    """The context [B, L, D] of queries, keys and values [B, L, D]: `attention_kernel.forward`."""
    return _make_forward(attention_params)(
        q, k, v, q_segment_ids, kv_segment_ids, _batch_indices(q), seed
    )[0]


def _batch_indices(q: jax.Array) -> jax.Array:
    return jnp.arange(q.shape[0], dtype=jnp.int32)


def _fwd(attention_params: AttentionParams, *arrays: jax.Array) -> tuple[jax.Array, Arrays]:
    *qkv_ids, seed = arrays
    inputs = (*qkv_ids, _batch_indices(arrays[0]), seed)
    context, logsumexp = _make_forward(attention_params)(*inputs)
    return context, (*inputs, context, logsumexp)


def _bwd(attention_params: AttentionParams, residuals: Arrays, grad: jax.Array) -> tuple[Any, ...]:
    return (*_make_backward(attention_params)(*residuals, grad), None, None, None)


fused_attention.defvjp(_fwd, _bwd)


def reference_attention(
    attention_params: AttentionParams,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    q_segment_ids: jax.Array,
    kv_segment_ids: jax.Array,
    batch_indices: jax.Array,
    seed: DropoutSeed,
) -> jax.Array:
    """The same by plain operations, on all rows of a batch at once."""
    del batch_indices  # the batch is whole: row i is row i
    batch, length, width = q.shape
    head_shape = (batch, length, attention_params.num_heads, width // attention_params.num_heads)
    q, k, v = (x.reshape(head_shape) for x in (q, k, v))
    scores = attention_scores(q * jnp.asarray(head_shape[3] ** -0.5, q.dtype), k)
    mask = q_segment_ids[:, None, :, None] == kv_segment_ids[:, None, None, :]
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min), axis=-1)
    dropped_weights = dropout(
        weights, attention_params.dropout_rate, seed if attention_params.dropout_rate else None
    )
    return attention_context(dropped_weights, v).astype(v.dtype).reshape(batch, length, width)


def _reference_forward(
    attention_params: AttentionParams, *arrays: jax.Array
) -> tuple[jax.Array, jax.Array]:
    batch, length, width = arrays[0].shape
    groups = width // pallas_attention.LANES
    unused = jnp.zeros((batch, groups, attention_params.num_heads // groups, length), jnp.float32)
    return reference_attention(attention_params, *arrays), unused


def _reference_backward(attention_params: AttentionParams, *arrays: jax.Array) -> Arrays:
    q, k, v, *rest, _, _, grad = arrays

    def context(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return reference_attention(attention_params, q, k, v, *rest)

    return jax.vjp(context, q, k, v)[1](grad)


@functools.cache
def _make_forward(attention_params: AttentionParams) -> Callable[..., tuple[jax.Array, jax.Array]]:
    kernel = functools.partial(
        pallas_attention.forward,
        num_heads=attention_params.num_heads,
        dropout_rate=attention_params.dropout_rate,
    )
    return _on_platform(
        _shard_over_batch(kernel, replicated_args=(SEED_ARG_INDEX,)),
        functools.partial(_reference_forward, attention_params),
    )


@functools.cache
def _make_backward(attention_params: AttentionParams) -> Callable[..., Arrays]:
    kernel = functools.partial(
        pallas_attention.backward,
        num_heads=attention_params.num_heads,
        dropout_rate=attention_params.dropout_rate,
    )
    return _on_platform(
        _shard_over_batch(kernel, replicated_args=(SEED_ARG_INDEX,)),
        functools.partial(_reference_backward, attention_params),
    )


def _on_platform(tpu: Callable[..., Any], default: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arrays: jax.Array) -> Any:
        return jax.lax.platform_dependent(*arrays, tpu=tpu, default=default)

    return run


def _shard_over_batch(
    kernel: Callable[..., Any], replicated_args: tuple[int, ...]
) -> Callable[..., Any]:
    """`kernel` on each device's rows; the arguments numbered in `whole` are the same for all."""

    def run(*arrays: jax.Array) -> Any:
        dtype, mesh = arrays[0].dtype, jax.sharding.get_abstract_mesh()
        device = jax.devices()[0] if mesh.empty else mesh.abstract_device
        operand_dtype = jnp.dtype(pallas_attention.operand_dtype(dtype.name, device.device_kind))
        arrays = tuple(x.astype(operand_dtype) if x.dtype == dtype else x for x in arrays)
        qkv_shape = arrays[0].shape  # everything but the sums of the softmax
        return tuple(
            x.astype(dtype) if x.shape == qkv_shape else x for x in run_sharded(mesh, arrays)
        )

    def run_sharded(mesh: jax.sharding.AbstractMesh, arrays: Arrays) -> Any:
        if mesh.empty:  # one device
            return kernel(*arrays)
        batch_spec = PartitionSpec(BATCH_AXES)
        specs = tuple(
            PartitionSpec() if i in replicated_args else batch_spec for i in range(len(arrays))
        )
        # The kernel's outputs have no record of the axes they vary over, hence no check of it.
        return jax.shard_map(kernel, in_specs=specs, out_specs=batch_spec, check_vma=False)(*arrays)

    return run
