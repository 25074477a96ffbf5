"""Counts the floating-point operations of the BERT encoder."""

from bert_jax.models.config import TransformerConfig


def encoder_flops(config: TransformerConfig, seq_length: int) -> float:
    """Returns the forward FLOPs for one token: 2 for each multiply-add, matrix products only.

    Four D x D projections, two D x F layers, and for attention 2 L D each for scores and context
    (Chowdhery et al. 2022, appendix B, without the causal half). Factorized embeddings have a
    projection E x D.
    """
    width, layers = config.hidden_size, config.num_hidden_layers
    embedding_width = config.word_embedding_size
    projection = 0 if embedding_width == width else 2 * embedding_width * width
    return projection + layers * layer_flops(config, seq_length)


def layer_flops(config: TransformerConfig, seq_length: int) -> float:
    """Returns the forward FLOPs of one layer for one token."""
    width = config.hidden_size
    return 8 * width**2 + 4 * width * config.intermediate_size + 4 * seq_length * width
