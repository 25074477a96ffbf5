"""Defines the encoder of ModernBERT, EuroBERT and UltraBERT: pre-norm layers, rotary positions.

What is different in the families is in their configs.
"""

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
from bert_jax.models.pre_norm.config import PreNormConfig


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
