"""Computes Longformer's attention: a window around each token, and global tokens.

A global token attends to all tokens of its sequence, with projections of its own, and all tokens
attend to it (Beltagy et al. 2020, section 3.1). The global tokens of a sequence are gathered into
[B, G], where G is static, so the cost grows linearly with the length L.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.attention import AttentionMask, SelfAttention
from bert_jax.models.layers.config import (
    ComputeConfig,
    GlobalAfterSeparator,
    GlobalBeforeSeparator,
    GlobalFirstToken,
    GlobalTokens,
)
from bert_jax.models.layers.dropout import DropoutSeed
from bert_jax.models.layers.linear import linear
from bert_jax.models.layers.local_attention import SharedKeys, local_attention
from bert_jax.models.layers.matmul import attention_scores, softmax_attention

_NO_KEY = -1
"""The segment id of keys that no query attends to; real ids are not negative."""


def global_attention_mask(
    tokens: GlobalTokens, input_ids: jax.Array, position_ids: jax.Array | None = None
) -> jax.Array:
    """Marks the tokens with global attention: int32 [B, L], 1 = global.

    Padding may be marked, too; the encoder ignores it.

    Args:
      position_ids: positions in each packed example; None if rows are not packed.
    """
    column = jnp.arange(input_ids.shape[1])[None]
    match tokens:
        case GlobalFirstToken():
            is_global = (column if position_ids is None else position_ids) == 0
        case GlobalBeforeSeparator():
            is_global = column < _first_column(input_ids == tokens.sep_token_id)
        case GlobalAfterSeparator():  # a pair has two separators in the middle
            is_global = column > _first_column(input_ids == tokens.sep_token_id) + 1
    return jnp.broadcast_to(is_global, input_ids.shape).astype(jnp.int32)


def count_global_tokens(tokens: GlobalTokens, input_ids: np.ndarray) -> int:
    """Returns how many tokens of one sequence without padding `global_attention_mask` marks."""
    match tokens:
        case GlobalFirstToken():
            return 1
        case GlobalBeforeSeparator():
            return int(np.argmax(input_ids == tokens.sep_token_id))
        case GlobalAfterSeparator():
            after = int(np.argmax(input_ids == tokens.sep_token_id)) + 2
            return max(0, len(input_ids) - after)


def _first_column(is_separator: jax.Array) -> jax.Array:
    """Returns the column of the first True of each row, [B, 1]; 0 if there is none."""
    return jnp.argmax(is_separator, axis=1, keepdims=True)


@dataclass(frozen=True)
class GlobalAttentionMask(AttentionMask):
    """Holds the segment ids of all tokens, int32 [B, L], and which tokens are global.

    Attributes:
      window_segment_ids: int32 [B, L], `kv_segment_ids` with -1 for the global tokens, which are no
        keys of the windows, because every query has them as shared keys.
      global_positions: int32 [B, G], ascending; L where a sequence has fewer global tokens. None
        for local attention only.
    """

    window_segment_ids: jax.Array | None = None
    global_positions: jax.Array | None = None


# The number of global tokens is a static size of the config, because shapes are static. Hugging
# Face takes the largest number in the batch. Tokens beyond it are local.
def make_global_mask(
    segment_ids: jax.Array, causal: bool, global_mask: jax.Array | None, max_global_tokens: int
) -> GlobalAttentionMask:
    """Makes the mask of a batch; tokens after the first `max_global_tokens` global ones are local.

    Args:
      segment_ids: int32 [B, L], 0 for padding, packed examples from 1.
      global_mask: int32 [B, L], 1 = global attention; None for none.
    """
    if global_mask is None:
        return GlobalAttentionMask(segment_ids, segment_ids, causal)
    length = segment_ids.shape[1]
    is_global = (global_mask > 0) & (segment_ids > 0)
    is_global &= jnp.cumsum(is_global, axis=1) <= max_global_tokens
    # The largest distances from the end are the first positions; 0 is no position.
    from_end = jnp.where(is_global, length - jnp.arange(length), 0)
    largest, _ = jax.lax.top_k(from_end, min(max_global_tokens, length))
    return GlobalAttentionMask(
        segment_ids,
        segment_ids,
        causal,
        window_segment_ids=jnp.where(is_global, _NO_KEY, segment_ids),
        global_positions=length - largest,
    )


class WindowAndGlobalAttention(SelfAttention):
    """Computes attention in a window, and the attention of global tokens with other projections."""

    def __init__(
        self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs, *, radius: int
    ):
        """Initializes all projections; a window has `radius` tokens on each side of the query."""
        super().__init__(config, compute, rngs)
        width = config.hidden_size
        self.query_global = linear(width, width, config, compute, rngs)
        self.key_global = linear(width, width, config, compute, rngs)
        self.value_global = linear(width, width, config, compute, rngs)
        self.radius = radius

    def __call__(
        self,
        x_BLD: jax.Array,
        mask: AttentionMask,
        dropout_seed: DropoutSeed | None,
        *,
        return_attention_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Attends within each sequence or packed example.

        Returns:
          The output [B, L, D], and the attention weights before dropout, float32 [B, H, L, L], or
          None unless `return_attention_weights`. The weights cost L x L for each head.
        """
        assert isinstance(mask, GlobalAttentionMask)
        q, k, v = (self._heads(x) for x in (self.query(x_BLD), self.key(x_BLD), self.value(x_BLD)))
        shared_keys = None
        if mask.global_positions is not None:
            shared_keys = SharedKeys(
                _take(k, mask.global_positions),
                _take(v, mask.global_positions),
                _global_segment_ids(mask),
            )
        context = local_attention(
            q,
            k,
            v,
            mask.q_segment_ids,
            radius=self.radius,
            kv_segment_ids=mask.window_segment_ids,
            shared_keys=shared_keys,
            causal=mask.causal,
            dropout_rate=self.dropout_rate,
            dropout_seed=dropout_seed,
        )
        weights = self._dense_weights(q, k, mask) if return_attention_weights else None
        if mask.global_positions is not None:
            global_context, global_weights = self._global_rows(x_BLD, mask, dropout_seed)
            context = _put(context, mask.global_positions, global_context)
            if weights is not None:
                rows = _put(
                    weights.transpose(0, 2, 1, 3),
                    mask.global_positions,
                    global_weights.transpose(0, 2, 1, 3),
                )
                weights = rows.transpose(0, 2, 1, 3)
        return self.output(context.reshape(x_BLD.shape)), weights

    def _heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:2], self.num_heads, -1)

    def _global_rows(
        self, x_BLD: jax.Array, mask: GlobalAttentionMask, dropout_seed: DropoutSeed | None
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the context [B, G, H, K] of the global tokens and their weights [B, H, G, L]."""
        assert mask.global_positions is not None
        q = self._heads(self.query_global(_take(x_BLD, mask.global_positions)))
        k, v = self._heads(self.key_global(x_BLD)), self._heads(self.value_global(x_BLD))
        scores = attention_scores(q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype), k)
        in_segment = (
            _global_segment_ids(mask)[:, None, :, None] == (mask.kv_segment_ids[:, None, None, :])
        )
        # Another mask than for the windows, whose elements have the same indices.
        seed = None if dropout_seed is None else dropout_seed ^ jnp.uint32(0x9E3779B9)
        return softmax_attention(scores, in_segment, v, self.dropout_rate, seed)

    def _dense_weights(self, q: jax.Array, k: jax.Array, mask: GlobalAttentionMask) -> jax.Array:
        """Returns the weights of local queries, float32 [B, H, L, L], from all L x L scores."""
        distance = jnp.abs(jnp.arange(q.shape[1])[:, None] - jnp.arange(q.shape[1]))
        in_window = (distance <= self.radius)[None]
        if mask.window_segment_ids is not None:
            in_window |= (mask.window_segment_ids == _NO_KEY)[:, None]
        scores = attention_scores(q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype), k)
        scores = jnp.where(
            in_window[:, None] & mask.mask_BHQK(), scores, jnp.finfo(jnp.float32).min
        )
        return jax.nn.softmax(scores, axis=-1)


def _global_segment_ids(mask: GlobalAttentionMask) -> jax.Array:
    """Returns the segment ids of the global tokens, int32 [B, G]; -1 where there is none."""
    assert mask.global_positions is not None
    ids = _take(mask.kv_segment_ids, mask.global_positions)
    return jnp.where(mask.global_positions < mask.kv_segment_ids.shape[1], ids, _NO_KEY)


def _take(x: jax.Array, positions_BG: jax.Array) -> jax.Array:
    """Gathers [B, L, ...] to [B, G, ...]; a position beyond the sequence gives the last token."""
    return jax.vmap(lambda row, index: jnp.take(row, index, axis=0, mode="clip"))(x, positions_BG)


def _put(x: jax.Array, positions_BG: jax.Array, rows: jax.Array) -> jax.Array:
    """Replaces the given positions of [B, L, ...] by rows [B, G, ...]; beyond L is ignored."""
    return jax.vmap(lambda row, index, new: row.at[index].set(new, mode="drop"))(
        x, positions_BG, rows
    )
