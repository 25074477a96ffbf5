"""Computes attention without saving an array of size L x L for the backward pass.

On TPUs it runs the kernel of `pallas_attention.py`. Elsewhere it computes the same from plain
operations, again in the backward pass. XLA cannot partition a kernel by itself: `shard_map` runs it
on each device's part of the batch, for the mesh that is set with `jax.set_mesh`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bert_jax.batch import BATCH_AXES
from bert_jax.models.layers import pallas_attention
from bert_jax.models.layers.dropout import DropoutSeed
from bert_jax.models.layers.matmul import attention_scores, softmax_attention

Arrays = tuple[jax.Array, ...]
SEED_ARG_INDEX = 6
"""Index of the seed in a kernel's arguments; all others have a batch dimension."""


class AttentionParams(NamedTuple):
    """Holds the static parameters of attention, on which a compiled kernel depends."""

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
    """Computes the context [B, L, D] from queries, keys and values [B, L, D].

    The arguments are as for `pallas_attention.forward`.
    """
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
    """Computes the same context with plain operations."""
    del batch_indices  # dropout of the whole batch needs no indices
    batch, length, width = q.shape
    head_shape = (batch, length, attention_params.num_heads, width // attention_params.num_heads)
    q, k, v = (x.reshape(head_shape) for x in (q, k, v))
    scores = attention_scores(q * jnp.asarray(head_shape[3] ** -0.5, q.dtype), k)
    mask = q_segment_ids[:, None, :, None] == kv_segment_ids[:, None, None, :]
    context, _ = softmax_attention(scores, mask, v, attention_params.dropout_rate, seed)
    return context.reshape(batch, length, width)


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


# XLA cannot partition a kernel. The run sets the mesh, so that the model itself need not refer to
# one.
def _shard_over_batch(
    kernel: Callable[..., Any], replicated_args: tuple[int, ...]
) -> Callable[..., Any]:
    """Runs a kernel on each device's part of the batch.

    Args:
      replicated_args: indices of the arguments that all devices need whole.
    """

    def run(*arrays: jax.Array) -> Any:
        dtype, mesh = arrays[0].dtype, jax.sharding.get_abstract_mesh()
        device = jax.devices()[0] if mesh.empty else mesh.abstract_device
        operand_dtype = jnp.dtype(pallas_attention.operand_dtype(dtype.name, device.device_kind))
        arrays = tuple(x.astype(operand_dtype) if x.dtype == dtype else x for x in arrays)
        qkv_shape = arrays[0].shape  # the shape of all outputs but logsumexp, which stays float32
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
        # A kernel's outputs do not record the mesh axes over which they vary, so the check is off.
        return jax.shard_map(kernel, in_specs=specs, out_specs=batch_spec, check_vma=False)(*arrays)

    return run
