"""Defines the base class of encoders with pre-norm layers and rotary positions.

ModernBERT and EuroBERT derive from it.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.layers.attention import AttentionMask, make_attention_mask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import make_layer_dropout_seeds
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.layer_groups import apply_layer_groups
from bert_jax.models.layers.linear import LayerNorm
from bert_jax.models.layers.pre_norm import AttentionInputs
from bert_jax.models.layers.transformer import NUM_DROPOUT_SITES


class PreNormEncoder(nnx.Module):
    """Encodes token ids: embeddings, `PreNormBlock` layers, a final norm.

    A subclass builds the parts and defines `attention_inputs`.
    """

    embeddings: Embeddings
    layers: Any
    final_norm: LayerNorm
    compute: ComputeConfig

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
        layer_seeds, (embedding_seed, *_) = make_layer_dropout_seeds(
            dropout_key, len(self.layers), NUM_DROPOUT_SITES
        )
        embedding_output = self.embeddings(input_ids, token_type_ids, position_ids, embedding_seed)
        last_hidden_state, layer_outputs, attention_weights = apply_layer_groups(
            self.layers,
            self.compute,
            embedding_output,
            self.attention_inputs(
                make_attention_mask(attention_mask, packing_ids, causal), position_ids
            ),
            layer_seeds,
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

    def attention_inputs(
        self, mask: AttentionMask, position_ids: jax.Array | None
    ) -> dict[str, AttentionInputs]:
        """Returns the mask and the rotations of each type of layers."""
        raise NotImplementedError

    def token_embeddings(self) -> jax.Array:
        """Returns the table of token embeddings, [V, D]."""
        return self.embeddings.word_embeddings.embedding[...]
