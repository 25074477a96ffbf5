"""Defines the EuroBERT encoder: RMS norm, rotary positions, grouped-query attention, no biases."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.eurobert.config import EuroBertConfig
from bert_jax.models.layers.attention import make_attention_mask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import make_layer_dropout_seeds
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import layer_norm
from bert_jax.models.layers.post_norm import NUM_DROPOUT_SITES
from bert_jax.models.layers.pre_norm import PreNormBlock, PreNormDropouts
from bert_jax.models.layers.rotary import inverse_frequencies, rotary_table
from bert_jax.models.layers.stack import run_layers, with_final_norm
from bert_jax.models.modernbert.model import PARAMETER_AXES as MODERNBERT_AXES

_LAYER_TYPE = "full_attention"


# The logits of "late" pooling are a mean over tokens of a linear layer, so that the mean can be
# taken before the layer. Output kernels start smaller, as ModernBERT's do; Hugging Face starts all
# kernels alike.
class EuroBertEncoder(nnx.Module):
    """Encodes token ids (Boizard et al. 2025), with the layers of Llama without a causal mask."""

    def __init__(self, config: EuroBertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, compute, rngs, has_norm=False)
        blocks = [
            PreNormBlock(
                config,
                compute,
                rngs,
                layer_type=_LAYER_TYPE,
                dropouts=PreNormDropouts(attention_output=0.0, feed_forward=0.0),
            )
            for _ in range(config.num_hidden_layers)
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
        frequencies = inverse_frequencies(self.config.head_width, self.config.rope_theta)
        table = rotary_table(input_ids.shape[1], frequencies, position_ids)
        output = run_layers(
            self.layers,
            self.compute,
            x_BLD,
            {_LAYER_TYPE: dataclasses.replace(mask, rotary=table)},
            layer_seeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        return with_final_norm(output, self.final_norm)

    def token_embeddings(self) -> jax.Array:
        """Returns the table of token embeddings, [V, D]."""
        return self.embeddings.word_embeddings.embedding[...]


# The embeddings have no norm.
PARAMETER_AXES = [row for row in MODERNBERT_AXES if row[0] != "embeddings/norm/*"]
