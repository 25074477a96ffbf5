"""Self-attention of whole rows in one kernel, with padding, packing and dropout; for TPUs (Pallas).

Rows of BERT are short: all scores of a head, [L, L], fit into a core's memory, so there is no need
for running maxima, and the backward pass computes them again instead of reading them back. Nothing
of size L x L reaches the device's memory. The mask of dropout is that of `models/dropout.py`,
element for element. The backward kernel has keys as rows and queries as columns: what belongs to a
query then lies along the lanes, and no product has to turn an [L, L] operand first.

Arrays stay [B, L, D] as projections leave them. A program of the kernel sees 128 lanes of one row,
which is 128 / K heads; a head is picked out by zeroing the other lanes, which costs the matrix unit
nothing, as it multiplies 128 lanes at a time anyway.

The first fused kernel for attention is that of Dao et al. 2022 (FlashAttention).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.models.dropout import SHARED, Seed, column_keys, kept, mix, realised, row_keys

LANES = 128
LONGEST = 512
"""Rows up to this length: four score matrices of a longer one do not fit beside each other."""
FORWARD, BACKWARD = "attention_forward", "attention_backward"
"""The kernels' names in a compiled program."""
_HIDDEN = -1e30
_FLOAT32_ONLY = ("TPU v2", "TPU v3")


def fits(length: int, width: int, heads: int) -> bool:
    """Whether the kernel takes rows of this shape."""
    head = width // heads
    return length % LANES == 0 and length <= LONGEST and LANES % head == 0 and width % LANES == 0


def operand_dtype(dtype: str, device_kind: str) -> str:
    """What the kernel is to be given on such a device for numbers of a dtype.

    Pallas has no products of bfloat16 for the first generations.
    """
    return "float32" if device_kind in _FLOAT32_ONLY else dtype


def forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    query_ids: jax.Array,
    key_ids: jax.Array,
    rows: jax.Array,
    seed: Seed,
    *,
    heads: int,
    rate: float,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """The context [B, L, D], and log_sums, float32 [B, D / 128, 128 / K, L], for `backward`.

    They are the logarithm of the sum of the exponentials of each query's scores.

    Args:
      q, k, v: [B, L, D], H heads of width K side by side; queries are not scaled yet.
      query_ids, key_ids: int32 [B, L]: a query sees the keys that have its own id.
      rows: int32 [B], each row's number in the whole batch, which its dropout goes by.
      seed: of the dropout; not looked at if `rate` is 0.
      interpret: run it on any platform, slowly.
    """
    batch, length, width = q.shape
    each = LANES * heads // width
    lanes, column, line, stats = _blocks(length, each)
    log_sums = jax.ShapeDtypeStruct((batch, width // LANES, each, length), jnp.float32)
    return pl.pallas_call(
        functools.partial(_forward_kernel, heads=heads, head_width=width // heads, rate=rate),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, width // LANES),
            in_specs=[lanes, lanes, lanes, column, line, _same((length, 1))],
            out_specs=[lanes, stats],
        ),
        out_shape=[jax.ShapeDtypeStruct(q.shape, q.dtype), log_sums],
        compiler_params=_PARALLEL,
        interpret=interpret,
        name=FORWARD,
    )(
        _numbers(seed, rows),
        q,
        k,
        v,
        query_ids[:, :, None],
        key_ids[:, None, :],
        row_keys(jax.lax.broadcasted_iota(jnp.uint32, (length, 1), 0), seed),
    )


def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    query_ids: jax.Array,
    key_ids: jax.Array,
    rows: jax.Array,
    seed: Seed,
    context: jax.Array,
    log_sums: jax.Array,
    grad: jax.Array,
    *,
    heads: int,
    rate: float,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of q, k and v from `grad`, that of the context, all [B, L, D]; see `forward`."""
    batch, length, width = q.shape
    lanes, column, line, stats = _blocks(length, LANES * heads // width)
    return pl.pallas_call(
        functools.partial(_backward_kernel, heads=heads, head_width=width // heads, rate=rate),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, width // LANES),
            in_specs=[*[lanes] * 3, line, column, _same((1, length)), lanes, stats, lanes],
            out_specs=[lanes] * 3,
            scratch_shapes=[pltpu.VMEM((length, LANES), jnp.float32)] * 2,
        ),
        out_shape=[jax.ShapeDtypeStruct(q.shape, q.dtype)] * 3,
        compiler_params=_PARALLEL,
        interpret=interpret,
        name=BACKWARD,
    )(
        _numbers(seed, rows),
        q,
        k,
        v,
        query_ids[:, None, :],
        key_ids[:, :, None],
        row_keys(jax.lax.broadcasted_iota(jnp.uint32, (1, length), 1), seed),
        context,
        log_sums,
        grad,
    )


_PARALLEL = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"))


def _blocks(length: int, each: int) -> tuple[pl.BlockSpec, ...]:
    """What a program sees of arrays [B, L, D], [B, L, 1], [B, 1, L], [B, D / 128, `each`, L]."""
    return (
        pl.BlockSpec((1, length, LANES), lambda b, g, _: (b, 0, g)),
        pl.BlockSpec((1, length, 1), lambda b, g, _: (b, 0, 0)),
        pl.BlockSpec((1, 1, length), lambda b, g, _: (b, 0, 0)),
        pl.BlockSpec((1, 1, each, length), lambda b, g, _: (b, g, 0, 0)),
    )


def _same(shape: tuple[int, int]) -> pl.BlockSpec:
    return pl.BlockSpec(shape, lambda b, g, _: (0, 0))


def _numbers(seed: Seed, rows: jax.Array) -> jax.Array:
    return jnp.concatenate([seed, rows.astype(jnp.uint32)])


def _forward_kernel(
    meta: Any,
    q: Any,
    k: Any,
    v: Any,
    query_ids: Any,
    key_ids: Any,
    keys: Any,
    out: Any,
    log_sums: Any,
    **of: Any,
) -> None:
    scale = jnp.asarray(of["head_width"] ** -0.5, q.dtype)
    hidden = _hidden(query_ids, key_ids)
    context = stats = jnp.zeros(out.shape[1:], jnp.float32)
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    for place, mine in _heads(of["head_width"]):
        scores = _dot(_only(mine, q[0] * scale), k[0], 1, 1) + hidden
        most = jnp.max(scores, axis=1, keepdims=True)
        e = jnp.exp(scores - most)
        sums = jnp.sum(e, axis=1, keepdims=True)
        stats = jnp.where(lane == place, most + jnp.log(sums), stats)
        if of["rate"]:
            e = jnp.where(_keep(meta, keys, place, 1, **of), e, jnp.float32(0))
        # Rows are divided by their sums at the end, where there are K numbers instead of L.
        norm = 1 / ((1 - realised(of["rate"])) * sums)
        context += _dot(e.astype(v.dtype), _only(mine, v[0]), 1, 0) * norm
    log_sums[0, 0] = stats.T[: log_sums.shape[2]]
    out[0] = context.astype(out.dtype)


def _backward_kernel(
    meta: Any,
    q: Any,
    k: Any,
    v: Any,
    query_ids: Any,
    key_ids: Any,
    keys: Any,
    context: Any,
    log_sums: Any,
    grad: Any,
    d_q: Any,
    d_k: Any,
    d_v: Any,
    sum_k: Any,
    sum_v: Any,
    **of: Any,
) -> None:
    dtype = q.dtype
    scale = jnp.asarray(of["head_width"] ** -0.5, dtype)
    up = 1 / (1 - realised(of["rate"]))
    hidden = _hidden(query_ids, key_ids)
    # What softmax takes off each query's gradients: their mean, which is that of the context.
    product = grad[0].astype(jnp.float32) * context[0].astype(jnp.float32)
    turned, product, parts = k[0].T, product.T, []
    sum_k[...] = jnp.zeros_like(sum_k)
    sum_v[...] = jnp.zeros_like(sum_v)
    for place, mine in _heads(of["head_width"]):
        q_mine, grad_mine = _only(mine, q[0] * scale), _only(mine, grad[0])
        lines = slice(place * of["head_width"], (place + 1) * of["head_width"])
        mean = jnp.sum(product[lines], axis=0, keepdims=True) * (1 / up)
        weights = jnp.exp(_dot(k[0], q_mine, 1, 1) + hidden - log_sums[0, 0, place : place + 1])
        dropped, d_weights = weights, _dot(v[0], grad_mine, 1, 1)
        if of["rate"]:
            keep = _keep(meta, keys, place, 0, **of)
            dropped = jnp.where(keep, weights, jnp.float32(0))
            d_weights = jnp.where(keep, d_weights, jnp.float32(0))
        d_scores = (weights * (d_weights - mean)).astype(dtype)
        sum_v[...] += _dot(dropped.astype(dtype), grad_mine, 1, 0)
        sum_k[...] += _dot(d_scores, q_mine, 1, 0)
        parts.append(_dot(turned[lines], d_scores, 1, 0))
    d_q[0] = (jnp.concatenate(parts).T * (up * scale.astype(jnp.float32))).astype(dtype)
    d_k[0] = (sum_k[...] * up).astype(dtype)
    d_v[0] = (sum_v[...] * up).astype(dtype)


def _heads(width: int) -> list[tuple[int, jax.Array]]:
    """(place among the heads of these lanes, bool [1, 128]: its lanes) of each head."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    return [
        (place, (lane >= place * width) & (lane < (place + 1) * width))
        for place in range(LANES // width)
    ]


def _only(mine: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(mine, x, jnp.zeros((), x.dtype))


def _hidden(query_ids: Any, key_ids: Any) -> jax.Array:
    return jnp.where(query_ids[0] == key_ids[0], jnp.float32(0), jnp.float32(_HIDDEN))


def _dot(a: jax.Array, b: jax.Array, axis_a: int, axis_b: int) -> jax.Array:
    dims = (((axis_a,), (axis_b,)), ((), ()))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _keep(
    meta: Any, keys: Any, place: int, axis: int, *, heads: int, head_width: int, rate: float
) -> jax.Array:
    """bool [L, L]: this head's part of `dropout.keep_mask((B, H, L, L), ...)`, columns on `axis`.

    `keys` are those of the mask's rows, and lie on the other axis.
    """
    part = max(keys.shape) // SHARED
    row = meta[2 + pl.program_id(0)]
    head = (pl.program_id(1) * (LANES // head_width) + place).astype(jnp.uint32)
    column = jax.lax.broadcasted_iota(jnp.uint32, (1, LANES), 1)  # `part` of them count
    index = (row * jnp.uint32(heads) + head) * jnp.uint32(part) + column
    seed = (meta[0], meta[1])
    columns = column_keys(index, seed)  # type: ignore[arg-type]
    if axis == 0:  # made as one row and turned: as a column it would take 16 times the products
        square = jnp.broadcast_to(columns, (LANES, LANES))
        turned = jax.lax.bitcast_convert_type(square, jnp.float32).T
        columns = jax.lax.bitcast_convert_type(turned[:part, :1], jnp.uint32)
    else:
        columns = columns[:, :part]
    hashes = mix(keys[...] + columns)
    # Put together before they are compared: Pallas has no way to join narrow pieces of bool.
    bytes_of = [hashes << jnp.uint32(24 - 8 * byte) for byte in range(SHARED)]
    return kept(jnp.concatenate(bytes_of, axis=axis), rate)
