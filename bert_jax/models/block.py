"""One layer of the stack: attention and feed-forward, each with its residual and norm."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.attention import SelfAttention, Visible
from bert_jax.models.config import Activation, BertConfig, Compute, Gelu, GeluTanh
from bert_jax.models.dropout import dropout
from bert_jax.models.linear import layer_norm, linear

SITES = 3
"""Dropout sites of a block: attention weights, attention output, feed-forward output."""


def gelu(x: jax.Array) -> jax.Array:
    """x times the standard normal distribution function of x, by erf, in float32.

    `jax.nn.gelu` goes by erfc, which is right to the last digit in the far left tail and costs
    half as much again; Hugging Face's goes by erf, as this one does.
    """
    wide = x.astype(jnp.float32)
    return (wide * (0.5 + 0.5 * jax.lax.erf(wide * 0.5**0.5))).astype(x.dtype)


def activate(x: jax.Array, activation: Activation) -> jax.Array:
    """The non-linearity of the feed-forward layer, elementwise."""
    match activation:
        case Gelu():
            return gelu(x)
        case GeluTanh():
            return jax.nn.gelu(x, approximate=True)


class FeedForward(nnx.Module):
    """Two dense layers, D -> F -> D, with a non-linearity between them."""

    def __init__(self, config: BertConfig, compute: Compute, rngs: nnx.Rngs):
        self.intermediate = linear(
            config.hidden_size, config.intermediate_size, config, compute, rngs
        )
        self.output = linear(config.intermediate_size, config.hidden_size, config, compute, rngs)
        self.activation = config.activation

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """[B, L, D] -> [B, L, D]."""
        return self.output(activate(self.intermediate(x_BLD), self.activation))


class PostNormBlock(nnx.Module):
    """norm(x + sublayer(x)), twice: the block of the original BERT."""

    def __init__(self, config: BertConfig, compute: Compute, rngs: nnx.Rngs):
        self.attention = SelfAttention(config, compute, rngs)
        self.attention_norm = layer_norm(config, compute, rngs)
        self.feed_forward = FeedForward(config, compute, rngs)
        self.feed_forward_norm = layer_norm(config, compute, rngs)
        self.rate = config.hidden_dropout

    def __call__(
        self, x_BLD: jax.Array, see: Visible, seeds: jax.Array | None, *, weights: bool = False
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the layer's output [B, L, D] and, if `weights`, its attention's [B, H, L, L].

        Args:
          seeds: uint32 [SITES, 2], or None to drop nothing.
        """
        first, second, third = (None,) * SITES if seeds is None else seeds
        attended, attention = self.attention(x_BLD, see, first, weights=weights)
        x_BLD = self.attention_norm(x_BLD + dropout(attended, self.rate, second))
        fed = self.feed_forward(x_BLD)
        return self.feed_forward_norm(x_BLD + dropout(fed, self.rate, third)), attention
