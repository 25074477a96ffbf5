"""Counts the floating-point operations of the ALBERT encoder."""

from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.bert.flops import layer_flops


def encoder_flops(config: AlbertConfig, seq_length: int) -> float:
    """Returns the forward FLOPs for one token: those of BERT, and the projection from E to D.

    Shared parameters save no FLOPs: every layer is computed.
    """
    projection = 2 * config.embedding_size * config.hidden_size
    return projection + config.num_applied_layers * layer_flops(config, seq_length)
