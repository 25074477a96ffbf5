"""Defines the encoder of ModernBERT, EuroBERT and UltraBERT: pre-norm layers, rotary positions.

The layers have no biases and a gated feed-forward layer. What is different in the families is in
their configs.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
from flax import nnx

from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.attention import AttentionMask, SelfAttention
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import dropout
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import layer_norm, output_stddev
from bert_jax.models.layers.post_norm import NUM_DROPOUT_SITES, GatedFeedForward
from bert_jax.models.layers.rotary import inverse_frequencies, rotary_table
from bert_jax.models.layers.stack import Span, repeating_span
from bert_jax.models.layers.transformer import EncoderInputs, TransformerEncoder
from bert_jax.models.pre_norm_config import PreNormConfig


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


# Output kernels start smaller, as ModernBERT's do; Hugging Face starts all kernels of EuroBERT
# alike. The logits of EuroBERT's "late" pooling are a mean over tokens of a linear layer, so the
# mean can be taken before the layer.
class PreNormEncoder(TransformerEncoder):
    """Encodes token ids; the prediction head is not part of it.

    ModernBERT (Warner et al. 2024), its decoder (Weller et al. 2025), EuroBERT (Boizard et al.
    2025), whose layers are those of Llama without a causal mask, and UltraBERT.
    """

    def __init__(self, config: PreNormConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        has_norm = config.has_embedding_norm
        self.embeddings = Embeddings(config, compute, rngs, has_norm=has_norm)
        blocks = [
            PreNormBlock(
                config,
                compute,
                rngs,
                layer_type=layer_type,
                dropouts=PreNormDropouts(*config.dropouts),
                # Behind the norm of the embeddings, the first layer needs none before attention.
                has_attention_norm=layer > 0 or not has_norm,
            )
            for layer, layer_type in enumerate(config.attention_types)
        ]
        self.layers = nnx.List(blocks)
        self.final_norm = layer_norm(config, compute)
        self.config, self.compute = config, compute
        self.drops_tokens = config.drops_tokens

    def attention_inputs(self, inputs: EncoderInputs) -> dict[str, AttentionMask]:
        """Returns the attention mask of each type of layer, with its rotations."""
        config = self.config
        mask = inputs._replace(causal=inputs.causal | config.is_decoder).mask()
        masks: dict[str, AttentionMask] = {}
        for layer_type, theta in config.rope_thetas.items():
            frequencies = inverse_frequencies(config.head_width, theta)
            table = rotary_table(inputs.length, frequencies, inputs.position_ids)
            radius = config.radius if layer_type == "sliding_attention" else mask.radius
            masks[layer_type] = dataclasses.replace(mask, radius=radius, rotary=table)
        return masks

    def spans(self) -> list[Span]:
        """Returns the layers that repeat."""
        return [repeating_span([block.kind for block in self.layers])]
