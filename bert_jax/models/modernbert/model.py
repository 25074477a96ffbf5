"""Defines the ModernBERT encoder: rotary positions, and alternating global and local attention."""

import dataclasses

import jax
from flax import nnx

from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import layer_norm
from bert_jax.models.layers.pre_norm import (
    AttentionInputs,
    PreNormBlock,
    PreNormDropouts,
    PreNormEncoder,
    rotary_table,
)
from bert_jax.models.modernbert.config import ModernBertConfig


class ModernBertEncoder(PreNormEncoder):
    """Encodes token ids (Warner et al. 2024); the prediction head is not part of it."""

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

    def attention_inputs(
        self, mask: AttentionMask, position_ids: jax.Array | None
    ) -> dict[str, AttentionInputs]:
        """Returns the mask and the rotations of each type of layers."""
        config, length = self.config, mask.kv_segment_ids.shape[1]
        head_width = config.hidden_size // config.num_attention_heads
        return {
            "full_attention": AttentionInputs(
                mask, rotary_table(length, head_width, config.global_rope_theta, position_ids)
            ),
            "sliding_attention": AttentionInputs(
                dataclasses.replace(mask, radius=config.radius),
                rotary_table(length, head_width, config.local_rope_theta, position_ids),
            ),
        }


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
