"""Connects corpora, labeled tasks and tokenizers to seqio; nothing else imports seqio.

Importing this package without seqio and TensorFlow raises MissingExtraError, which says how to
install them.
"""

from importlib.util import find_spec

from bert_jax.errors import MissingExtraError

if find_spec("seqio") is None or find_spec("tensorflow") is None:
    raise MissingExtraError("seqio tasks need seqio and TensorFlow", "seqio")
