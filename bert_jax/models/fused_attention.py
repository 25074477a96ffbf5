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
from bert_jax.models import attention_kernel
from bert_jax.models.dropout import Seed, dropout
from bert_jax.models.product import attention_context, attention_scores

Arrays = tuple[jax.Array, ...]
SEED = 6
"""The place of the seed among a kernel's arguments; all others have as many rows as the batch."""


class Shape(NamedTuple):
    """What a compiled attention depends on besides its arrays' shapes."""

    heads: int
    rate: float


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def fused_attention(
    shape: Shape,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    query_ids: jax.Array,
    key_ids: jax.Array,
    seed: Seed,
) -> jax.Array:
    """The context [B, L, D] of queries, keys and values [B, L, D]: `attention_kernel.forward`."""
    return _forward(shape)(q, k, v, query_ids, key_ids, _rows(q), seed)[0]


def _rows(q: jax.Array) -> jax.Array:
    return jnp.arange(q.shape[0], dtype=jnp.int32)


def _keep(shape: Shape, *arrays: jax.Array) -> tuple[jax.Array, Arrays]:
    *qkv_ids, seed = arrays
    inputs = (*qkv_ids, _rows(arrays[0]), seed)
    context, log_sums = _forward(shape)(*inputs)
    return context, (*inputs, context, log_sums)


def _differentiate(shape: Shape, saved: Arrays, grad: jax.Array) -> tuple[Any, ...]:
    return (*_backward(shape)(*saved, grad), None, None, None)


fused_attention.defvjp(_keep, _differentiate)


def plain_context(
    shape: Shape,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    query_ids: jax.Array,
    key_ids: jax.Array,
    rows: jax.Array,
    seed: Seed,
) -> jax.Array:
    """The same by plain operations, on all rows of a batch at once."""
    del rows  # the batch is whole: row i is row i
    batch, length, width = q.shape
    split = (batch, length, shape.heads, width // shape.heads)
    q, k, v = (x.reshape(split) for x in (q, k, v))
    scores = attention_scores(q * jnp.asarray(split[3] ** -0.5, q.dtype), k)
    mask = query_ids[:, None, :, None] == key_ids[:, None, None, :]
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min), axis=-1)
    dropped = dropout(weights, shape.rate, seed if shape.rate else None)
    return attention_context(dropped, v).astype(v.dtype).reshape(batch, length, width)


def _plain_forward(shape: Shape, *arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
    batch, length, width = arrays[0].shape
    groups = width // attention_kernel.LANES
    unused = jnp.zeros((batch, groups, shape.heads // groups, length), jnp.float32)
    return plain_context(shape, *arrays), unused


def _plain_gradients(shape: Shape, *arrays: jax.Array) -> Arrays:
    q, k, v, *rest, _, _, grad = arrays

    def context(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return plain_context(shape, q, k, v, *rest)

    return jax.vjp(context, q, k, v)[1](grad)


@functools.cache
def _forward(shape: Shape) -> Callable[..., tuple[jax.Array, jax.Array]]:
    kernel = functools.partial(attention_kernel.forward, heads=shape.heads, rate=shape.rate)
    return _on_platform(
        _by_rows(kernel, whole=(SEED,)),
        functools.partial(_plain_forward, shape),
    )


@functools.cache
def _backward(shape: Shape) -> Callable[..., Arrays]:
    kernel = functools.partial(attention_kernel.backward, heads=shape.heads, rate=shape.rate)
    return _on_platform(_by_rows(kernel, whole=(SEED,)), functools.partial(_plain_gradients, shape))


def _on_platform(tpu: Callable[..., Any], default: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arrays: jax.Array) -> Any:
        return jax.lax.platform_dependent(*arrays, tpu=tpu, default=default)

    return run


def _by_rows(kernel: Callable[..., Any], whole: tuple[int, ...]) -> Callable[..., Any]:
    """`kernel` on each device's rows; the arguments numbered in `whole` are the same for all."""

    def run(*arrays: jax.Array) -> Any:
        dtype, mesh = arrays[0].dtype, jax.sharding.get_abstract_mesh()
        device = jax.devices()[0] if mesh.empty else mesh.abstract_device
        operands = jnp.dtype(attention_kernel.operand_dtype(dtype.name, device.device_kind))
        arrays = tuple(x.astype(operands) if x.dtype == dtype else x for x in arrays)
        wide = arrays[0].shape  # everything but the sums of the softmax
        return tuple(x.astype(dtype) if x.shape == wide else x for x in cut(mesh, arrays))

    def cut(mesh: jax.sharding.AbstractMesh, arrays: Arrays) -> Any:
        if mesh.empty:  # one device
            return kernel(*arrays)
        rows = PartitionSpec(BATCH_AXES)
        specs = tuple(PartitionSpec() if i in whole else rows for i in range(len(arrays)))
        # The kernel's outputs have no record of the axes they vary over, hence no check of it.
        return jax.shard_map(kernel, in_specs=specs, out_specs=rows, check_vma=False)(*arrays)

    return run
