"""Defines the EuroBERT encoder: RMS norm, rotary positions, grouped-query attention, no biases."""

import dataclasses

from flax import nnx

from bert_jax.models.eurobert.config import EuroBertConfig
from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import layer_norm
from bert_jax.models.layers.pre_norm import PreNormBlock, PreNormDropouts
from bert_jax.models.layers.rotary import inverse_frequencies, rotary_table
from bert_jax.models.layers.transformer import EncoderInputs, TransformerEncoder
from bert_jax.models.modernbert.model import PARAMETER_AXES as MODERNBERT_AXES

_LAYER_TYPE = "full_attention"


# The logits of "late" pooling are a mean over tokens of a linear layer, so that the mean can be
# taken before the layer. Output kernels start smaller, as ModernBERT's do; Hugging Face starts all
# kernels alike.
class EuroBertEncoder(TransformerEncoder):
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

    def attention_inputs(self, inputs: EncoderInputs) -> dict[str, AttentionMask]:
        """Returns the attention mask with rotations, by type of layer: all have one type."""
        frequencies = inverse_frequencies(self.config.head_width, self.config.rope_theta)
        table = rotary_table(inputs.length, frequencies, inputs.position_ids)
        return {_LAYER_TYPE: dataclasses.replace(inputs.mask(), rotary=table)}


# The embeddings have no norm.
PARAMETER_AXES = [row for row in MODERNBERT_AXES if row[0] != "embeddings/norm/*"]
