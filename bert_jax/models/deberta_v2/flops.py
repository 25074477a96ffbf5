"""Counts the floating-point operations of the DeBERTa encoder."""

from bert_jax.models.bert.flops import encoder_flops as bert_flops
from bert_jax.models.deberta_v2.config import DebertaV2Config


def encoder_flops(config: DebertaV2Config, seq_length: int) -> float:
    """Returns the forward FLOPs for one token: BERT's and the products with relative positions.

    For each token these are 2 products with all relative embeddings, or with the 2 L - 1 that a
    short sequence needs, whichever are fewer. The projections of the relative embeddings are left
    out: they are computed once for a batch.
    """
    num_relative = min(2 * config.position_buckets, 2 * seq_length - 1)
    relative = config.num_hidden_layers * 4 * num_relative * config.hidden_size
    return bert_flops(config, seq_length) + relative
