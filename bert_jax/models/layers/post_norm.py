"""Computes the post-norm layer of BERT: attention and feed-forward, each with residual and norm.

ALBERT, MPNet, DeBERTa, BigBird and Longformer have it too, some with another attention.
`layers/stack.py` runs a stack of layers.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.attention import AttentionMask, SelfAttention
from bert_jax.models.layers.config import Activation, ComputeConfig
from bert_jax.models.layers.dropout import DropoutSeed, dropout
from bert_jax.models.layers.linear import layer_norm, linear

NUM_DROPOUT_SITES = 3
"""Number of dropouts in a layer: attention weights, attention output, feed-forward output."""


def gelu(x: jax.Array) -> jax.Array:
    """Computes the exact GELU, x times the standard normal CDF of x, with erf in float32.

    Hugging Face's GELU uses erf, too. `jax.nn.gelu` uses erfc, which is more exact in the far left
    tail and takes half as much time again.
    """
    x_float32 = x.astype(jnp.float32)
    return (x_float32 * (0.5 + 0.5 * jax.lax.erf(x_float32 * 0.5**0.5))).astype(x.dtype)


def activate(x: jax.Array, activation: Activation) -> jax.Array:
    """Applies an activation function elementwise."""
    match activation:
        case "gelu":
            return gelu(x)
        case "gelu_tanh":
            return jax.nn.gelu(x, approximate=True)
        case "relu":
            return jax.nn.relu(x)
        case "silu":
            return jax.nn.silu(x)
        case "tanh":
            return jnp.tanh(x)


class FeedForward(nnx.Module):
    """Computes two dense layers, D -> F -> D, with an activation between them."""

    def __init__(self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.intermediate = linear(
            config.hidden_size, config.intermediate_size, config, compute, rngs
        )
        self.output = linear(config.intermediate_size, config.hidden_size, config, compute, rngs)
        self.activation: Activation = config.hidden_act

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Maps [B, L, D] to [B, L, D]."""
        return self.output(activate(self.intermediate(x_BLD), self.activation))


class GatedFeedForward(nnx.Module):
    """Computes output(activation(intermediate(x)) * gate(x)), as in Shazeer 2020."""

    def __init__(
        self,
        config: TransformerConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        *,
        dropout_rate: float = 0.0,
        output_bias: bool = False,
        output_stddev: float | None = None,
    ):
        """Builds the layers; `output_stddev` None initializes all of them alike."""
        D, F = config.hidden_size, config.intermediate_size
        self.intermediate = linear(D, F, config, compute, rngs, use_bias=False)
        self.gate = linear(D, F, config, compute, rngs, use_bias=False)
        self.output = linear(
            F, D, config, compute, rngs, use_bias=output_bias, stddev=output_stddev
        )
        self.activation: Activation = config.hidden_act
        self.dropout_rate = dropout_rate

    def __call__(self, x_BLD: jax.Array, dropout_seed: DropoutSeed | None = None) -> jax.Array:
        """Maps [B, L, D] to [B, L, D]; dropout is applied to the gated activations."""
        gated = activate(self.intermediate(x_BLD), self.activation) * self.gate(x_BLD)
        return self.output(dropout(gated, self.dropout_rate, dropout_seed))


class PostNormBlock(nnx.Module):
    """Computes norm(x + sublayer(x)) for attention and for feed-forward: the layer of BERT.

    Attributes:
      num_dropout_sites: `NUM_DROPOUT_SITES`, and one more with a gated feed-forward layer.
    """

    def __init__(
        self,
        config: TransformerConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        attention: nnx.Module | None = None,
        feed_forward: nnx.Module | None = None,
    ):
        """Initializes all parameters; None is `SelfAttention` and `FeedForward`."""
        self.attention: Any = (
            SelfAttention(config, compute, rngs) if attention is None else attention
        )
        self.attention_norm = layer_norm(config, compute)
        self.feed_forward: Any = (
            FeedForward(config, compute, rngs) if feed_forward is None else feed_forward
        )
        self.feed_forward_norm = layer_norm(config, compute)
        self.dropout_rate = config.hidden_dropout_prob
        self.num_dropout_sites = NUM_DROPOUT_SITES + isinstance(feed_forward, GatedFeedForward)

    def __call__(
        self,
        x_BLD: jax.Array,
        mask: AttentionMask,
        dropout_seeds: jax.Array | None,
        *,
        return_attention_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Applies the layer.

        Args:
          dropout_seeds: uint32 [num_dropout_sites, 2], or None to apply no dropout. The last one
            of four is for dropout inside a gated feed-forward layer.

        Returns:
          The output [B, L, D], and the attention weights, float32 [B, H, L, L], or None unless
          `return_attention_weights`.
        """
        attn_seed, residual_seed, ffn_seed, *inner_seeds = (
            (None,) * NUM_DROPOUT_SITES if dropout_seeds is None else dropout_seeds
        )
        attn_out, attention_weights = self.attention(
            x_BLD, mask, attn_seed, return_attention_weights=return_attention_weights
        )
        x_BLD = self.attention_norm.add(x_BLD, dropout(attn_out, self.dropout_rate, residual_seed))
        ffn_out = self.feed_forward(x_BLD, *inner_seeds)
        return self.feed_forward_norm.add(
            x_BLD, dropout(ffn_out, self.dropout_rate, ffn_seed)
        ), attention_weights
