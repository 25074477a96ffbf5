"""Defines the ModernBERT encoder: rotary positions, and alternating global and local attention."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.layers.attention import make_attention_mask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import make_layer_dropout_seeds
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import layer_norm
from bert_jax.models.layers.post_norm import NUM_DROPOUT_SITES
from bert_jax.models.layers.pre_norm import PreNormBlock, PreNormDropouts
from bert_jax.models.layers.rotary import inverse_frequencies, rotary_table
from bert_jax.models.layers.stack import (
    TokenSelection,
    repeating_span,
    run_layers,
    with_final_norm,
)
from bert_jax.models.modernbert.config import ModernBertConfig


class ModernBertEncoder(nnx.Module):
    """Encodes token ids (Warner et al. 2024); the prediction head is not part of it.

    With a `ModernBertDecoderConfig` it is the decoder of Weller et al. 2025.
    """

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

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        *,
        position_ids: jax.Array | None = None,
        packing_ids: jax.Array | None = None,
        causal: bool | jax.Array = False,
        dropout_key: jax.Array | None = None,
        selection: TokenSelection | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Encodes int32 [B, L] ids; see `Encoder` in `models/encoder.py` for the arguments."""
        if token_type_ids is None:
            token_type_ids = jnp.zeros_like(input_ids)
        if attention_mask is None:
            attention_mask = jnp.ones_like(input_ids)
        layer_seeds, (embedding_seed, *_) = make_layer_dropout_seeds(
            dropout_key, len(self.layers), NUM_DROPOUT_SITES
        )
        x_BLD = self.embeddings(input_ids, token_type_ids, position_ids, embedding_seed)
        causal |= self.config.is_decoder
        mask = make_attention_mask(attention_mask, packing_ids, causal)
        config, length = self.config, input_ids.shape[1]
        global_rotary, local_rotary = (
            rotary_table(length, inverse_frequencies(config.head_width, theta), position_ids)
            for theta in (config.global_rope_theta, config.local_rope_theta)
        )
        masks = {
            "full_attention": dataclasses.replace(mask, rotary=global_rotary),
            "sliding_attention": dataclasses.replace(
                mask, radius=config.radius, rotary=local_rotary
            ),
        }
        output = run_layers(
            self.layers,
            self.compute,
            x_BLD,
            masks,
            layer_seeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            selection=selection,
            spans=[repeating_span([block.kind for block in self.layers])],
        )
        return with_final_norm(output, self.final_norm)

    def token_embeddings(self) -> jax.Array:
        """Returns the table of token embeddings, [V, D]."""
        return self.embeddings.word_embeddings.embedding[...]


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
