"""Defines the ModernBERT encoder: rotary positions, and alternating global and local attention."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.layers.attention import AttentionMask, make_attention_mask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import make_dropout_seeds
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.layer_groups import apply_layer_groups
from bert_jax.models.layers.linear import layer_norm
from bert_jax.models.layers.pre_norm import AttentionInputs, PreNormBlock, PreNormDropouts
from bert_jax.models.layers.rotary import rotary_table
from bert_jax.models.layers.transformer import NUM_DROPOUT_SITES
from bert_jax.models.modernbert.config import ModernBertConfig


class ModernBertEncoder(nnx.Module):
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

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        *,
        position_ids: jax.Array | None = None,
        packing_ids: jax.Array | None = None,
        causal: bool = False,
        dropout_key: jax.Array | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Encodes int32 [B, L] ids; see `Encoder` in `models/encoder.py` for the arguments.

        The last of the hidden states is the one after the final norm, as in Hugging Face.
        """
        if token_type_ids is None:
            token_type_ids = jnp.zeros_like(input_ids)
        if attention_mask is None:
            attention_mask = jnp.ones_like(input_ids)
        num_layers = len(self.layers)
        # The seeds of the layers come first; the last row is that of the embeddings.
        dropout_seeds = (
            None
            if dropout_key is None
            else make_dropout_seeds(dropout_key, (num_layers + 1, NUM_DROPOUT_SITES))
        )
        embedding_output = self.embeddings(
            input_ids,
            token_type_ids,
            position_ids,
            None if dropout_seeds is None else dropout_seeds[num_layers, 0],
        )
        last_hidden_state, layer_outputs, attention_weights = apply_layer_groups(
            self.layers,
            self.compute,
            embedding_output,
            self._attention_inputs(
                make_attention_mask(attention_mask, packing_ids, causal), position_ids
            ),
            None if dropout_seeds is None else dropout_seeds[:num_layers],
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        last_hidden_state = self.final_norm(last_hidden_state)
        return EncoderOutput(
            last_hidden_state,
            (embedding_output, *layer_outputs[:-1], last_hidden_state)
            if output_hidden_states
            else (),
            tuple(attention_weights),
        )

    def _attention_inputs(
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

    def token_embeddings(self) -> jax.Array:
        """Returns the table of token embeddings, [V, D]."""
        return self.embeddings.word_embeddings.embedding[...]


build_encoder = ModernBertEncoder
