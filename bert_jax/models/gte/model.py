"""Builds the GTE encoder: BERT's with a gated feed-forward layer."""

from flax import nnx

from bert_jax.models.bert.model import BertEncoder
from bert_jax.models.gte.config import GteConfig
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.post_norm import GatedFeedForward, PostNormBlock


def build_gte(config: GteConfig, compute: ComputeConfig, rngs: nnx.Rngs) -> BertEncoder:
    """Builds the encoder (Zhang et al. 2024) with initialized parameters."""
    blocks = [
        PostNormBlock(
            config,
            compute,
            rngs,
            feed_forward=GatedFeedForward(
                config,
                compute,
                rngs,
                dropout_rate=config.hidden_dropout_prob,
                output_bias=True,
            ),
        )
        for _ in range(config.num_hidden_layers)
    ]
    return BertEncoder(config, compute, rngs, blocks)
