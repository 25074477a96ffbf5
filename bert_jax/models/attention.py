"""Multi-head self-attention, and the masks that say who may attend to whom."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.config import BertConfig, Compute
from bert_jax.models.dropout import Seed, dropout
from bert_jax.models.linear import linear
from bert_jax.models.product import attention_context, attention_scores


def attention_mask_BHQK(
    attention_mask: jax.Array, packing_ids: jax.Array | None, causal: bool
) -> jax.Array:
    """bool, broadcastable to [B, H, L, L]: True where a query (row) may see a key (column).

    Args:
      attention_mask: int32 [B, L], 1 = real token.
      packing_ids: int32 [B, L] or None. Tokens see their own packed example only; padding (0)
        sees padding, so that no row of the softmax is empty.
      causal: whether a query sees only itself and what stands left of it.
    """
    if packing_ids is not None:
        mask = packing_ids[:, None, :, None] == packing_ids[:, None, None, :]
    else:
        mask = (attention_mask > 0)[:, None, None, :]
    if causal:
        length = attention_mask.shape[1]
        mask &= jnp.tril(jnp.ones((length, length), bool))[None, None]
    return mask


class SelfAttention(nnx.Module):
    """Scaled dot-product attention over H heads of width K = D / H (Vaswani et al. 2017, 3.2)."""

    def __init__(self, config: BertConfig, compute: Compute, rngs: nnx.Rngs):
        width = config.hidden_size
        self.query = linear(width, width, config, compute, rngs)
        self.key = linear(width, width, config, compute, rngs)
        self.value = linear(width, width, config, compute, rngs)
        self.output = linear(width, width, config, compute, rngs)
        self.heads = config.num_attention_heads
        self.rate = config.attention_dropout

    def __call__(
        self, x_BLD: jax.Array, mask: jax.Array, seed: Seed | None
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the output [B, L, D] and the attention weights, before dropout, [B, H, L, L]."""
        B, L, D = x_BLD.shape
        q, k, v = (
            project(x_BLD).reshape(B, L, self.heads, D // self.heads)
            for project in (self.query, self.key, self.value)
        )
        scale = (D // self.heads) ** -0.5
        scores = attention_scores(q * jnp.asarray(scale, q.dtype), k)
        scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(scores, axis=-1)
        context = attention_context(dropout(weights, self.rate, seed), v)
        context = context.astype(v.dtype).reshape(B, L, D)
        return self.output(context), weights
