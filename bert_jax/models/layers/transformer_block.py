"""One layer of the stack: attention and feed-forward, each with its residual and norm."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.config import Activation, BertConfig, ComputeConfig, Gelu, GeluTanh
from bert_jax.models.layers.attention import AttentionMask, SelfAttention
from bert_jax.models.layers.dropout import dropout
from bert_jax.models.layers.linear import layer_norm, linear

NUM_DROPOUT_SITES = 3
"""Dropout sites of a block: attention weights, attention output, feed-forward output."""


def gelu(x: jax.Array) -> jax.Array:
    """x times the standard normal distribution function of x, by erf, in float32.

    `jax.nn.gelu` goes by erfc, which is right to the last digit in the far left tail and costs
    half as much again; Hugging Face's goes by erf, as this one does.
    """
    x_float32 = x.astype(jnp.float32)
    return (x_float32 * (0.5 + 0.5 * jax.lax.erf(x_float32 * 0.5**0.5))).astype(x.dtype)


def activate(x: jax.Array, activation: Activation) -> jax.Array:
    """The non-linearity of the feed-forward layer, elementwise."""
    match activation:
        case Gelu():
            return gelu(x)
        case GeluTanh():
            return jax.nn.gelu(x, approximate=True)


class FeedForward(nnx.Module):
    """Two dense layers, D -> F -> D, with a non-linearity between them."""

    def __init__(self, config: BertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.intermediate = linear(
            config.hidden_size, config.intermediate_size, config, compute, rngs
        )
        self.output = linear(config.intermediate_size, config.hidden_size, config, compute, rngs)
        self.activation = config.hidden_act

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """[B, L, D] -> [B, L, D]."""
        return self.output(activate(self.intermediate(x_BLD), self.activation))


class PostNormBlock(nnx.Module):
    """norm(x + sublayer(x)), twice: the block of the original BERT."""

    def __init__(self, config: BertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.attention = SelfAttention(config, compute, rngs)
        self.attention_norm = layer_norm(config, compute, rngs)
        self.feed_forward = FeedForward(config, compute, rngs)
        self.feed_forward_norm = layer_norm(config, compute, rngs)
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self,
        x_BLD: jax.Array,
        mask: AttentionMask,
        dropout_seeds: jax.Array | None,
        *,
        return_attention_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the layer's output [B, L, D] and, if `weights`, its attention's [B, H, L, L].

        Args:
          seeds: uint32 [SITES, 2], or None to drop nothing.
        """
        attn_seed, residual_seed, ffn_seed = (
            (None,) * NUM_DROPOUT_SITES if dropout_seeds is None else dropout_seeds
        )
        attn_out, attention_weights = self.attention(
            x_BLD, mask, attn_seed, return_attention_weights=return_attention_weights
        )
        x_BLD = self.attention_norm(x_BLD + dropout(attn_out, self.dropout_rate, residual_seed))
        ffn_out = self.feed_forward(x_BLD)
        return self.feed_forward_norm(
            x_BLD + dropout(ffn_out, self.dropout_rate, ffn_seed)
        ), attention_weights
