"""Self-attention of whole rows in one kernel, with padding, packing and dropout; for TPUs (Pallas).

Rows of BERT are short: all scores of a head, [L, L], fit into a core's memory, so there is no need
for running maxima, and the backward pass computes them again instead of reading them back. Nothing
of size L x L reaches the device's memory. The mask of dropout is that of `models/dropout.py`,
element for element.

Arrays stay [B, L, D] as projections leave them. A program of the kernel sees 128 lanes of one row,
which is 128 / K heads; a head is picked out by zeroing the other lanes, which costs the matrix unit
nothing, as it multiplies 128 lanes at a time anyway.

The first fused kernel for attention is that of Dao et al. 2022 (FlashAttention).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.models.dropout import SHARED, Seed, column_keys, kept, mix, realised, row_keys

LANES = 128
LONGEST = 512
"""Rows up to this length: four score matrices of a longer one do not fit beside each other."""
_HIDDEN = -1e30


def fits(length: int, width: int, heads: int) -> bool:
    """Whether the kernel takes rows of this shape."""
    head = width // heads
    return length % LANES == 0 and length <= LONGEST and LANES % head == 0 and width % LANES == 0


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
) -> jax.Array:
    """The context [B, L, D].

    Args:
      q, k, v: [B, L, D], H heads of width K side by side; queries are not scaled yet.
      query_ids, key_ids: int32 [B, L]: a query sees the keys that have its own id.
      rows: int32 [B], each row's number in the whole batch, which its dropout goes by.
      seed: of the dropout; not looked at if `rate` is 0.
      interpret: run it on any platform, slowly.
    """
    call = _call(_forward_kernel, 1, (), heads=heads, rate=rate, interpret=interpret)
    return call(q, k, v, query_ids, key_ids, rows, seed)[0]


def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    query_ids: jax.Array,
    key_ids: jax.Array,
    rows: jax.Array,
    seed: Seed,
    grad: jax.Array,
    *,
    heads: int,
    rate: float,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of q, k and v from that of the context, all [B, L, D]; see `forward`."""
    length = q.shape[1]
    sums = (pltpu.VMEM((length, LANES), jnp.float32),) * 2
    call = _call(_backward_kernel, 3, sums, heads=heads, rate=rate, interpret=interpret)
    d_q, d_k, d_v = call(q, k, v, query_ids, key_ids, rows, seed, grad)
    return d_q, d_k, d_v


def _call(
    kernel: Callable[..., None],
    outputs: int,
    scratch: tuple[Any, ...],
    *,
    heads: int,
    rate: float,
    interpret: bool,
) -> Callable[..., list[jax.Array]]:
    def run(
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        query_ids: jax.Array,
        key_ids: jax.Array,
        rows: jax.Array,
        seed: Seed,
        *grad: jax.Array,
    ) -> list[jax.Array]:
        batch, length, width = q.shape
        lanes = pl.BlockSpec((1, length, LANES), lambda b, g, _: (b, 0, g))
        column = pl.BlockSpec((1, length, 1), lambda b, g, _: (b, 0, 0))
        line = pl.BlockSpec((1, 1, length), lambda b, g, _: (b, 0, 0))
        keys = pl.BlockSpec((length, 1), lambda b, g, _: (0, 0))
        numbers = jax.lax.broadcasted_iota(jnp.uint32, (length, 1), 0)
        return pl.pallas_call(
            functools.partial(kernel, heads=heads, head_width=width // heads, rate=rate),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(batch, width // LANES),
                in_specs=[lanes, lanes, lanes, column, line, keys, *(lanes for _ in grad)],
                out_specs=[lanes] * outputs,
                scratch_shapes=scratch,
            ),
            out_shape=[jax.ShapeDtypeStruct(q.shape, q.dtype)] * outputs,
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
            interpret=interpret,
        )(
            jnp.concatenate([seed, rows.astype(jnp.uint32)]),
            q,
            k,
            v,
            query_ids[:, :, None],
            key_ids[:, None, :],
            row_keys(numbers, seed),
            *grad,
        )

    return run


def _forward_kernel(
    meta: Any, q: Any, k: Any, v: Any, query_ids: Any, key_ids: Any, keys: Any, out: Any, **of: Any
) -> None:
    scale = jnp.asarray(of["head_width"] ** -0.5, q.dtype)
    hidden = _hidden(query_ids, key_ids)
    context = jnp.zeros(out.shape[1:], jnp.float32)
    for place, mine in _heads(of["head_width"]):
        e = _exponentials(_only(mine, q[0] * scale), k[0], hidden)
        # Rows are divided by their sums at the end, where there are K numbers instead of L.
        norm = 1 / ((1 - realised(of["rate"])) * jnp.sum(e, axis=1, keepdims=True))
        if of["rate"]:
            e = jnp.where(_keep(meta, keys, place, **of), e, jnp.float32(0))
        context += _dot(e.astype(v.dtype), _only(mine, v[0]), 1, 0) * norm
    out[0] = context.astype(out.dtype)


def _backward_kernel(
    meta: Any,
    q: Any,
    k: Any,
    v: Any,
    query_ids: Any,
    key_ids: Any,
    keys: Any,
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
    sum_q = jnp.zeros(d_q.shape[1:], jnp.float32)
    sum_k[...] = jnp.zeros_like(sum_k)
    sum_v[...] = jnp.zeros_like(sum_v)
    for place, mine in _heads(of["head_width"]):
        q_mine, grad_mine = _only(mine, q[0] * scale), _only(mine, grad[0])
        e = _exponentials(q_mine, k[0], hidden)
        weights = e * (1 / jnp.sum(e, axis=1, keepdims=True))
        dropped = weights
        if of["rate"]:
            dropped = jnp.where(_keep(meta, keys, place, **of), weights, jnp.float32(0))
        product = dropped * _dot(grad_mine, v[0], 1, 1)
        d_scores = (product - weights * jnp.sum(product, axis=1, keepdims=True)) * up
        d_scores = d_scores.astype(dtype)
        sum_v[...] += _dot(dropped.astype(dtype), grad_mine, 0, 0)
        sum_k[...] += _dot(d_scores, q_mine, 0, 0)
        sum_q += _dot(d_scores, _only(mine, k[0]), 1, 0)
    d_q[0] = (sum_q * scale.astype(jnp.float32)).astype(dtype)
    d_k[0] = sum_k[...].astype(dtype)
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


def _exponentials(q: jax.Array, k: jax.Array, hidden: jax.Array) -> jax.Array:
    scores = _dot(q, k, 1, 1) + hidden
    return jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True))


def _dot(a: jax.Array, b: jax.Array, axis_a: int, axis_b: int) -> jax.Array:
    dims = (((axis_a,), (axis_b,)), ((), ()))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _keep(
    meta: Any, keys: Any, place: int, *, heads: int, head_width: int, rate: float
) -> jax.Array:
    """bool [L, L]: this head's part of `dropout.keep_mask((B, H, L, L), ...)`."""
    part = keys.shape[0] // SHARED
    row = meta[2 + pl.program_id(0)]
    head = (pl.program_id(1) * (LANES // head_width) + place).astype(jnp.uint32)
    column = jax.lax.broadcasted_iota(jnp.uint32, (1, part), 1)
    index = (row * jnp.uint32(heads) + head) * jnp.uint32(part) + column
    seed = (meta[0], meta[1])
    hashes = mix(keys[...] + column_keys(index, seed))  # type: ignore[arg-type]
    bytes_of = [kept(hashes, jnp.uint32(24 - 8 * byte), rate) for byte in range(SHARED)]
    return jnp.concatenate(bytes_of, axis=1)
