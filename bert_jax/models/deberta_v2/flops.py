"""Counts the floating-point operations of the DeBERTa encoder."""

from bert_jax.models.bert.flops import encoder_flops as bert_flops
from bert_jax.models.deberta_v2.config import DebertaV2Config


def encoder_flops(config: DebertaV2Config, seq_length: int) -> float:
    """Returns the forward FLOPs for one token: BERT's and the products with relative positions.

    For each token these are 2 products with the relative embeddings of all 2 L - 1 differences,
    although the table has fewer rows for long sequences (see `deberta_v2/attention.py`). The
    projections of the relative embeddings are left out: they are computed once for a batch.
    """
    relative = config.num_hidden_layers * 4 * (2 * seq_length - 1) * config.hidden_size
    return bert_flops(config, seq_length) + relative
