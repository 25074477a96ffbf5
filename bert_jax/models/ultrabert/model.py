"""Defines the UltraBERT encoder: EuroBERT's layers with global and local attention by layer."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.eurobert.model import PARAMETER_AXES as PARAMETER_AXES
from bert_jax.models.layers.attention import make_attention_mask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import make_layer_dropout_seeds
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import layer_norm
from bert_jax.models.layers.post_norm import NUM_DROPOUT_SITES
from bert_jax.models.layers.pre_norm import PreNormBlock, PreNormDropouts
from bert_jax.models.layers.rotary import inverse_frequencies, rotary_table
from bert_jax.models.layers.stack import repeating_span, run_layers, with_final_norm
from bert_jax.models.ultrabert.config import UltraBertConfig


class UltraBertEncoder(nnx.Module):
    """Encodes token ids; in two of three layers a token attends to its neighbors only."""

    def __init__(self, config: UltraBertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, compute, rngs, has_norm=False)
        dropouts = PreNormDropouts(attention_output=0.0, feed_forward=0.0)
        blocks = [
            PreNormBlock(config, compute, rngs, layer_type=layer_type, dropouts=dropouts)
            for layer_type in config.layer_types
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
        mask = make_attention_mask(attention_mask, packing_ids, causal)
        config, length = self.config, input_ids.shape[1]
        global_rotary, local_rotary = (
            rotary_table(length, inverse_frequencies(config.head_width, theta), position_ids)
            for theta in (config.global_rope_theta, config.local_rope_theta)
        )
        masks = {
            "full_attention": dataclasses.replace(mask, rotary=global_rotary),
            "sliding_attention": dataclasses.replace(
                mask, radius=config.sliding_window, rotary=local_rotary
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
            spans=[repeating_span([block.kind for block in self.layers])],
        )
        return with_final_norm(output, self.final_norm)

    def token_embeddings(self) -> jax.Array:
        """Returns the table of token embeddings, [V, D]."""
        return self.embeddings.word_embeddings.embedding[...]
