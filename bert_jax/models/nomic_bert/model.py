"""Builds the NomicBERT encoder: BERT's with a gated feed-forward layer and without biases."""

from flax import nnx

from bert_jax.models.bert.model import BertEncoder
from bert_jax.models.layers.attention import SelfAttention
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.post_norm import GatedFeedForward, PostNormBlock
from bert_jax.models.nomic_bert.config import NomicBertConfig


def build_nomic_bert(
    config: NomicBertConfig, compute: ComputeConfig, rngs: nnx.Rngs
) -> BertEncoder:
    """Builds the encoder (Nussbaum et al. 2024) with initialized parameters."""
    blocks = [
        PostNormBlock(
            config,
            compute,
            rngs,
            attention=SelfAttention(config, compute, rngs, use_bias=False),
            feed_forward=GatedFeedForward(config, compute, rngs),
        )
        for _ in range(config.num_hidden_layers)
    ]
    return BertEncoder(config, compute, rngs, blocks)
