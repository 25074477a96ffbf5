"""Defines the pre-norm layer without biases and with a gated feed-forward layer.

ModernBERT, EuroBERT and UltraBERT have it, with rotary positions (`layers/rotary.py`).
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
from flax import nnx

from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.attention import AttentionMask, SelfAttention
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import dropout
from bert_jax.models.layers.linear import layer_norm, output_stddev
from bert_jax.models.layers.post_norm import NUM_DROPOUT_SITES, GatedFeedForward


class PreNormDropouts(NamedTuple):
    """Holds the dropout rates of a layer: after attention, and inside the feed-forward layer."""

    attention_output: float
    feed_forward: float


class PreNormBlock(nnx.Module):
    """Computes x + sublayer(norm(x)) for attention and for feed-forward, without biases.

    Attributes:
      attention_norm: exists unless `has_attention_norm` is False, as in the first layer of
        ModernBERT: its input is already normalized.
      num_dropout_sites: number of dropouts, each with a seed.
    """

    num_dropout_sites = NUM_DROPOUT_SITES

    def __init__(
        self,
        config: TransformerConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        *,
        layer_type: str,
        dropouts: PreNormDropouts,
        has_attention_norm: bool = True,
    ):
        """Builds a layer that reads the attention mask of `layer_type`."""
        if has_attention_norm:
            self.attention_norm = layer_norm(config, compute)
        self.attention = SelfAttention(
            config, compute, rngs, use_bias=False, output_stddev=output_stddev(config)
        )
        self.feed_forward_norm = layer_norm(config, compute)
        # Output kernels start smaller, because the residual stream adds up 2 N of their outputs.
        self.feed_forward = GatedFeedForward(
            config,
            compute,
            rngs,
            dropout_rate=dropouts.feed_forward,
            output_stddev=output_stddev(config),
        )
        self.layer_type = layer_type
        self.has_attention_norm = has_attention_norm
        self.attention_output_dropout = dropouts.attention_output

    @property
    def kind(self) -> tuple[str, bool]:
        """Returns a value that is equal for blocks of equal structure."""
        return self.layer_type, self.has_attention_norm

    def __call__(
        self,
        x_BLD: jax.Array,
        masks: Mapping[str, AttentionMask],
        dropout_seeds: jax.Array | None,
        *,
        return_attention_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Applies the layer.

        Args:
          masks: the attention masks by type of layer, with rotations.
          dropout_seeds: uint32 [NUM_DROPOUT_SITES, 2], or None to apply no dropout.

        Returns:
          The output [B, L, D], and the attention weights, float32 [B, H, L, L], or None unless
          `return_attention_weights`.
        """
        attn_seed, residual_seed, ffn_seed = (
            (None,) * NUM_DROPOUT_SITES if dropout_seeds is None else dropout_seeds
        )
        attn_out, attention_weights = self.attention(
            self.attention_norm(x_BLD) if self.has_attention_norm else x_BLD,
            masks[self.layer_type],
            attn_seed,
            return_attention_weights=return_attention_weights,
        )
        x_BLD = x_BLD + dropout(attn_out, self.attention_output_dropout, residual_seed)
        x_BLD = x_BLD + self.feed_forward(self.feed_forward_norm(x_BLD), ffn_seed)
        return x_BLD, attention_weights
