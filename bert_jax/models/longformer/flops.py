"""Counts the floating-point operations of the Longformer encoder."""

from bert_jax.models.bert.flops import encoder_flops as dense_encoder_flops
from bert_jax.models.longformer.config import LongformerConfig


def encoder_flops(config: LongformerConfig, seq_length: int) -> float:
    """Returns the forward FLOPs for one token: BERT's, with the keys of a window instead of all.

    Global attention is not counted, because pretraining has none. In fine-tuning it adds about a
    sixth: the global keys and values of all tokens, 4 D x D for each layer.
    """
    all_keys = config.num_hidden_layers * 4 * seq_length * config.hidden_size
    window_keys = sum(
        4 * min(window + 1, seq_length) * config.hidden_size for window in config.attention_window
    )
    return dense_encoder_flops(config, seq_length) - all_keys + window_keys
