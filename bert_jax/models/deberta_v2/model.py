"""Defines the DeBERTa encoder (He et al. 2021, 2023): BERT's layers with disentangled attention.

The input has no positions and no token types. Hugging Face also sets the embeddings of padding to
zero; this is left out, because no real token attends to padding.
"""

import jax
from flax import nnx

from bert_jax.models.bert.model import BertEncoder
from bert_jax.models.config import TransformerConfig
from bert_jax.models.deberta_v2.attention import (
    DisentangledAttention,
    RelativeAttentionMask,
    relative_rows,
)
from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.linear import embedding, layer_norm
from bert_jax.models.layers.transformer import PostNormBlock


class DebertaV2Encoder(BertEncoder):
    """Encodes token ids; heads are not part of it.

    Attributes:
      relative_embeddings: a vector for each bucket of relative positions, [2 buckets, D].
      relative_norm: the LayerNorm that is applied to them once for all layers.
    """

    def __init__(self, config: DebertaV2Config, compute: ComputeConfig, rngs: nnx.Rngs):
        super().__init__(config, compute, rngs)
        self.relative_embeddings = embedding(2 * config.position_buckets, config, rngs)
        self.relative_norm = layer_norm(config, compute)
        self.config = config

    def make_blocks(
        self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs
    ) -> list[PostNormBlock]:
        """Builds the layers, with disentangled attention."""
        assert isinstance(config, DebertaV2Config)
        return [
            PostNormBlock(config, compute, rngs, DisentangledAttention(config, compute, rngs))
            for _ in range(config.num_hidden_layers)
        ]

    def make_mask(
        self, attention_mask: jax.Array, packing_ids: jax.Array | None, causal: bool
    ) -> RelativeAttentionMask:
        """Returns the attention mask with the relative embeddings that this length uses.

        Within a packed example the distance of two tokens is the difference of their indices in the
        row, so packed rows need nothing else.
        """
        mask = super().make_mask(attention_mask, packing_ids, causal)
        rows = relative_rows(attention_mask.shape[1], self.config)
        table = self.relative_embeddings.embedding[...][rows[0] : rows[-1] + 1]
        return RelativeAttentionMask(
            mask.q_segment_ids,
            mask.kv_segment_ids,
            mask.causal,
            relative_embeddings=self.relative_norm(table),
        )


build_encoder = DebertaV2Encoder
