"""Counts the floating-point operations of the ModernBERT encoder."""

from bert_jax.models.modernbert.config import ModernBertConfig


def encoder_flops(config: ModernBertConfig, seq_length: int) -> float:
    """Returns the forward FLOPs for one token: 2 for each multiply-add, matrix products only.

    Four D x D projections, three D x F layers, and for attention 2 K D each for scores and context,
    where K is the number of keys: L in global layers, and the window in local ones. The products of
    a window with keys that are masked (`layers/local_attention.py`) are not counted.
    """
    width = config.hidden_size
    num_global = config.layer_types.count("full_attention")
    num_local = config.num_hidden_layers - num_global
    window = min(seq_length, 2 * config.radius + 1)
    projections = 8 * width**2 + 6 * width * config.intermediate_size
    num_keys = num_global * seq_length + num_local * window
    return config.num_hidden_layers * projections + 4 * width * num_keys
