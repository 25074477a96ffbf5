"""Counts the floating-point operations of the BigBird encoder."""

from bert_jax.models.bert.flops import encoder_flops as dense_encoder_flops
from bert_jax.models.bigbird.config import BigBirdConfig, FullAttention


def encoder_flops(config: BigBirdConfig, seq_length: int) -> float:
    """Returns the forward FLOPs for one token: BERT's, with the keys of the visible blocks.

    In training a query attends to 5 blocks and the random ones; the queries of the first and the
    last block attend to all L keys, which is 2 blocks of keys for each query on average.
    """
    flops, attention = dense_encoder_flops(config, seq_length), config.attention
    if isinstance(attention, FullAttention) or seq_length <= attention.max_full_length:
        return flops
    keys = (5 + attention.num_random_blocks + 2) * attention.block_size
    return flops - config.num_hidden_layers * 4 * (seq_length - keys) * config.hidden_size
