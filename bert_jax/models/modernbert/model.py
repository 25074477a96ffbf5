"""Defines the ModernBERT encoder: rotary positions, and alternating global and local attention."""

import dataclasses

from flax import nnx

from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import layer_norm
from bert_jax.models.layers.pre_norm import PreNormBlock, PreNormDropouts
from bert_jax.models.layers.rotary import inverse_frequencies, rotary_table
from bert_jax.models.layers.stack import Span, repeating_span
from bert_jax.models.layers.transformer import EncoderInputs, TransformerEncoder
from bert_jax.models.modernbert.config import ModernBertConfig


class ModernBertEncoder(TransformerEncoder):
    """Encodes token ids (Warner et al. 2024); the prediction head is not part of it.

    With a `ModernBertDecoderConfig` it is the decoder of Weller et al. 2025.
    """

    drops_tokens = True

    def __init__(self, config: ModernBertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, compute, rngs)
        dropouts = PreNormDropouts(config.attention_output_dropout, config.mlp_dropout)
        blocks = [
            PreNormBlock(
                config,
                compute,
                rngs,
                layer_type=layer_type,
                dropouts=dropouts,
                # The embeddings end with a norm, so the first layer has none before attention.
                has_attention_norm=layer > 0,
            )
            for layer, layer_type in enumerate(config.layer_types)
        ]
        self.layers = nnx.List(blocks)
        self.final_norm = layer_norm(config, compute)
        self.config, self.compute = config, compute

    def attention_inputs(self, inputs: EncoderInputs) -> dict[str, AttentionMask]:
        """Returns the attention mask of each type of layer, with its rotations."""
        config = self.config
        mask = inputs._replace(causal=inputs.causal | config.is_decoder).mask()
        global_rotary, local_rotary = (
            rotary_table(
                inputs.length, inverse_frequencies(config.head_width, theta), inputs.position_ids
            )
            for theta in (config.global_rope_theta, config.local_rope_theta)
        )
        return {
            "full_attention": dataclasses.replace(mask, rotary=global_rotary),
            "sliding_attention": dataclasses.replace(
                mask, radius=config.radius, rotary=local_rotary
            ),
        }

    def spans(self) -> list[Span]:
        """Returns the layers that repeat."""
        return [repeating_span([block.kind for block in self.layers])]


PARAMETER_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    ("embeddings/word_embeddings/embedding", ("vocab", "embed")),
    ("embeddings/norm/*", (None,)),
    ("layers/*/attention/query/kernel", ("embed", "heads")),
    ("layers/*/attention/key/kernel", ("embed", "heads")),
    ("layers/*/attention/value/kernel", ("embed", "heads")),
    ("layers/*/attention/output/kernel", ("heads", "embed")),
    ("layers/*/attention_norm/*", (None,)),
    ("layers/*/feed_forward/intermediate/kernel", ("embed", "mlp")),
    ("layers/*/feed_forward/gate/kernel", ("embed", "mlp")),
    ("layers/*/feed_forward/output/kernel", ("mlp", "embed")),
    ("layers/*/feed_forward_norm/*", (None,)),
    ("final_norm/*", (None,)),
]
