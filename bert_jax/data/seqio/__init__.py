"""Connects corpora, labeled tasks and tokenizers to seqio; nothing else imports seqio.

Importing this package without seqio and TensorFlow raises MissingExtraError, which says how to
install them.
"""

from importlib.util import find_spec

from bert_jax.errors import MissingExtraError
from bert_jax.io.import_tensorflow import import_tensorflow

if find_spec("seqio") is None or find_spec("tensorflow") is None:
    raise MissingExtraError("seqio tasks need seqio and TensorFlow", "seqio")
import_tensorflow()  # before the modules of this package do
