"""Defines the ELECTRA encoder (Clark et al. 2020), which has BERT's layers.

The difference is in the config: embeddings narrower than the layers are projected to their width.
"""

from bert_jax.models.bert.model import BertEncoder


class ElectraEncoder(BertEncoder):
    """Encodes token ids, in the discriminator and in the generator; heads are not part of it."""


build_encoder = ElectraEncoder
