"""Computes sliding-window attention in blocks, at a cost that grows linearly with the length L.

A query at position i attends to the keys at positions i - radius to i + radius, within its own
segment, and to keys shared by all queries of a sequence, if there are any (Longformer's global
tokens). The queries are split into blocks. Each block multiplies its queries with one window of
keys: the block itself and a margin of at least `radius` keys on both sides. The products inside a
window that are outside of the radius, or that belong to another segment, are masked.

All shapes are static, and the blocks are a batch dimension of ordinary matrix products, so XLA can
partition them over devices and compile them for any platform.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.models.layers.config import block_shape
from bert_jax.models.layers.dropout import DropoutSeed
from bert_jax.models.layers.matmul import attention_scores, softmax_attention

_OUTSIDE = -1
"""The segment id of positions before and after the sequence; real ids are not negative."""


class SharedKeys(NamedTuple):
    """Holds keys to which every query attends that has their segment id, at any distance.

    Attributes:
      k, v: [B, G, H, K].
      segment_ids: int32 [B, G]; -1 where a sequence has fewer than G shared keys.
    """

    k: jax.Array
    v: jax.Array
    segment_ids: jax.Array


# Matrix products of static shapes, which XLA compiles and partitions as any other: there is no
# second kernel to maintain, and the cost grows linearly with the length (docs/performance.md).
# Windows have 256 keys for ModernBERT's radius of 64, a multiple of the 128 lanes of a TPU. Padding
# attends to padding, because a softmax over nothing is NaN.
def local_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: jax.Array,
    *,
    radius: int,
    kv_segment_ids: jax.Array | None = None,
    shared_keys: SharedKeys | None = None,
    causal: bool = False,
    dropout_rate: float = 0.0,
    dropout_seed: DropoutSeed | None = None,
) -> jax.Array:
    """Computes the context of queries that attend to nearby keys of their own segment.

    Args:
      q, k, v: [B, L, H, K]; queries are not scaled yet.
      segment_ids: int32 [B, L], not negative. Packed examples have different ids, and so have real
        tokens and padding. Every token attends at least to itself.
      radius: the largest distance between a query and its keys, so a window has 2 radius + 1 keys.
      kv_segment_ids: int32 [B, L], the segment ids of keys if they differ from the queries' ids;
        -1 for keys that no query attends to.
      shared_keys: keys outside of the windows; None for none.
      causal: whether a query attends only to its own position and those before it.
      dropout_seed: None applies no dropout. Dense attention has other masks for the same seed.

    Returns:
      The context [B, L, H, K] in the dtype of `v`. The softmax is computed in float32.
    """
    batch, length, heads, width = q.shape
    block, margin = block_shape(length, radius)
    num_blocks = -(-length // block)
    end = num_blocks * block - length
    q, k, v = (jnp.pad(x, ((0, 0), (0, end), (0, 0), (0, 0))) for x in (q, k, v))
    ids, kv_ids = (
        jnp.pad(x, ((0, 0), (0, end)), constant_values=_OUTSIDE)
        for x in (segment_ids, segment_ids if kv_segment_ids is None else kv_segment_ids)
    )

    def merge_blocks(x: jax.Array) -> jax.Array:
        """Makes the blocks of all sequences one batch: [B, N, ...] to [B x N, ...]."""
        return x.reshape(batch * num_blocks, *x.shape[2:])

    q, q_ids = (merge_blocks(x.reshape(batch, num_blocks, block, *x.shape[2:])) for x in (q, ids))
    windows = [_windows(x, block, margin, fill) for x, fill in ((k, 0), (v, 0), (kv_ids, _OUTSIDE))]
    band = _band(block, margin, radius, causal)
    if shared_keys is not None:
        # Each block has its own copy of the shared keys, so that there is one product and one
        # softmax. The ids of missing keys are -1, which equals no query's id but _OUTSIDE.
        windows = [
            jnp.concatenate([x, jnp.repeat(shared[:, None], num_blocks, axis=1)], axis=2)
            for x, shared in zip(windows, shared_keys, strict=True)
        ]
        band = jnp.pad(band, ((0, 0), (0, shared_keys.k.shape[1])), constant_values=True)
    k, v, k_ids = map(merge_blocks, windows)
    mask = band & (q_ids[:, :, None] == k_ids[:, None, :])
    scores = attention_scores(q * jnp.asarray(width**-0.5, q.dtype), k)  # [B x N, H, block, window]
    context, _ = softmax_attention(scores, mask[:, None], v, dropout_rate, dropout_seed)
    return context.reshape(batch, num_blocks * block, heads, width)[:, :length]


def _windows(x: jax.Array, block: int, margin: int, fill: int) -> jax.Array:
    """Returns the window of every block: [B, N x block, ...] to [B, N, block + 2 margin, ...].

    The windows of the first and the last block contain `fill` outside of the sequence.
    """
    blocks = x.reshape(x.shape[0], -1, block, *x.shape[2:])
    if not margin:
        return blocks
    no_padding = ((0, 0),) * (blocks.ndim - 2)
    before = jnp.pad(
        blocks[:, :-1, block - margin :], ((0, 0), (1, 0), *no_padding), constant_values=fill
    )
    after = jnp.pad(blocks[:, 1:, :margin], ((0, 0), (0, 1), *no_padding), constant_values=fill)
    return jnp.concatenate([before, blocks, after], axis=2)


def _band(block: int, margin: int, radius: int, causal: bool) -> jax.Array:
    """Returns bool [block, block + 2 margin]: True where a key of the window is near enough."""
    query = jax.lax.broadcasted_iota(jnp.int32, (block, block + 2 * margin), 0)
    key = jax.lax.broadcasted_iota(jnp.int32, (block, block + 2 * margin), 1) - margin
    band = jnp.abs(query - key) <= radius
    return band & (key <= query) if causal else band
