"""Defines the MPNet encoder (Song et al. 2020): BERT's layers with a relative position bias.

Positions are counted from the padding id, as in RoBERTa, and there are no token types. One bias,
which depends on head and distance, is added to the attention scores of all layers.

The masked and permuted objective that MPNet was pretrained with also needs this encoder only: it
is a matter of masks and positions.
"""

import dataclasses

import jax
from flax import nnx

from bert_jax.models.bert.model import BertEncoder
from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.relative_bias import RelativePositionBias
from bert_jax.models.mpnet.config import MPNetConfig


class MPNetEncoder(BertEncoder):
    """Encodes token ids; pooler and heads are not part of it.

    Attributes:
      relative_attention_bias: 32 buckets up to distance 128, constants in Hugging Face's code.
    """

    def __init__(self, config: MPNetConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        super().__init__(config, compute, rngs)
        self.relative_attention_bias = RelativePositionBias(config, rngs)

    def make_mask(
        self, attention_mask: jax.Array, packing_ids: jax.Array | None, causal: bool
    ) -> AttentionMask:
        """Returns BERT's attention mask with the relative bias."""
        mask = super().make_mask(attention_mask, packing_ids, causal)
        return dataclasses.replace(mask, bias=self.relative_attention_bias(attention_mask.shape[1]))


build_encoder = MPNetEncoder
