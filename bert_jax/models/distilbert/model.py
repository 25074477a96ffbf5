"""Defines the DistilBERT encoder (Sanh et al. 2019), which has BERT's layers.

The differences are in the config: half the layers, and no token types.
"""

from bert_jax.models.bert.model import BertEncoder


class DistilBertEncoder(BertEncoder):
    """Encodes token ids and ignores token types; heads are not part of it."""


build_encoder = DistilBertEncoder
