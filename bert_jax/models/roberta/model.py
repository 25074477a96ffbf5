"""Defines the RoBERTa encoder (Liu et al. 2019), which has BERT's layers.

The differences are in the config: positions are counted from the padding id (`layers/embeddings.py`
computes them), and all tokens share one token-type vector.
"""

from bert_jax.models.bert.model import BertEncoder


class RobertaEncoder(BertEncoder):
    """Encodes token ids; pooler and heads are not part of it."""


build_encoder = RobertaEncoder
