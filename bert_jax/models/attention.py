"""Multi-head self-attention, and who may attend to whom."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models import attention_kernel
from bert_jax.models.config import BertConfig, Compute, FusedAttention
from bert_jax.models.dropout import Seed, dropout
from bert_jax.models.fused_attention import Shape, fused_attention
from bert_jax.models.linear import linear
from bert_jax.models.product import attention_context, attention_scores


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("query_ids", "key_ids"),
    meta_fields=("causal",),
)
@dataclass(frozen=True)
class Visible:
    """Who sees whom: a query sees the keys that have its id, and if `causal` none to its right.

    Attributes:
      query_ids: int32 [B, L], or [B, 1] if all queries of a row have the same.
      key_ids: int32 [B, L].
    """

    query_ids: jax.Array
    key_ids: jax.Array
    causal: bool

    def mask_BHQK(self) -> jax.Array:
        """bool, broadcastable to [B, H, L, L]: True where a query (row) may see a key (column)."""
        mask = self.query_ids[:, None, :, None] == self.key_ids[:, None, None, :]
        if self.causal:
            length = self.key_ids.shape[1]
            mask &= jnp.tril(jnp.ones((length, length), bool))[None, None]
        return mask


def visible(attention_mask: jax.Array, packing_ids: jax.Array | None, causal: bool) -> Visible:
    """Padding or packing, as ids.

    Args:
      attention_mask: int32 [B, L], 1 = real token.
      packing_ids: int32 [B, L] or None. Tokens see their own packed example only; padding (0)
        sees padding, so that no row of the softmax is empty.
      causal: whether a query sees only itself and what stands left of it.
    """
    if packing_ids is not None:
        return Visible(packing_ids, packing_ids, causal)
    return Visible(jnp.ones_like(attention_mask[:, :1]), attention_mask, causal)


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
        self.fused = isinstance(compute.attention, FusedAttention)

    def __call__(
        self, x_BLD: jax.Array, see: Visible, seed: Seed | None, *, weights: bool = False
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the output [B, L, D] and, if `weights`, those of attention, before dropout.

        They are float32 [B, H, L, L].
        """
        B, L, D = x_BLD.shape
        q, k, v = self.query(x_BLD), self.key(x_BLD), self.value(x_BLD)
        fits = attention_kernel.fits(L, D, self.heads)
        if self.fused and fits and not weights and not see.causal:
            shape = Shape(self.heads, 0.0 if seed is None else self.rate)
            ids = jnp.broadcast_to(see.query_ids, see.key_ids.shape)
            drop = jnp.zeros((2,), jnp.uint32) if seed is None else seed
            return self.output(fused_attention(shape, q, k, v, ids, see.key_ids, drop)), None
        q, k, v = (x.reshape(B, L, self.heads, D // self.heads) for x in (q, k, v))
        scores = attention_scores(q * jnp.asarray((D // self.heads) ** -0.5, q.dtype), k)
        scores = jnp.where(see.mask_BHQK(), scores, jnp.finfo(jnp.float32).min)
        attended = jax.nn.softmax(scores, axis=-1)
        context = attention_context(dropout(attended, self.rate, seed), v)
        context = context.astype(v.dtype).reshape(B, L, D)
        return self.output(context), attended if weights else None
