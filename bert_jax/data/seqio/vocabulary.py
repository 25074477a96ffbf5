"""Wraps a tokenizer of bert_jax/text as a seqio vocabulary."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from bert_jax.data.seqio.tf_numpy import SCALAR, VECTOR, numpy_function
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer


class SeqioVocabulary(seqio.Vocabulary):
    """Implements seqio's vocabulary interface with a tokenizer, which is loaded at first use.

    It has no end-of-sequence id: seqio cuts decoded text at the first one, and a pair contains
    [SEP] twice. Two vocabularies are equal if they make the same ids, which seqio's mixtures
    require of their tasks.
    """

    def __init__(self, path: str):
        super().__init__(extra_ids=0)
        self.path = path

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Returns the wrapped tokenizer."""
        return load_tokenizer(self.path)

    @property
    def bos_id(self) -> int:
        return self.tokenizer.cls_id

    @property
    def eos_id(self) -> None:
        return None

    @property
    def pad_id(self) -> int:
        return self.tokenizer.pad_id

    @property
    def unk_id(self) -> int:
        return self.tokenizer.unk_id

    @property
    def _base_vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def _encode(self, s: str) -> Sequence[int]:
        return self.tokenizer.encode(s)

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode([int(i) for i in ids])

    def _encode_tf(self, s: tf.Tensor) -> Any:
        """Returns ids int32 [T] of a scalar string, or a RaggedTensor [N, None] of strings [N]."""
        if s.shape.rank == 0:
            (ids,) = numpy_function(
                lambda text: (self._encode_bytes(text),), [s], [(tf.int32, VECTOR)]
            )
            return ids
        outputs = [(tf.int32, VECTOR), (tf.int64, VECTOR)]
        ids, lengths = numpy_function(self._encode_many, [s], outputs)
        ragged: Any = tf.RaggedTensor
        return ragged.from_row_lengths(ids, lengths)

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the text of ids [T]."""
        outputs = [(tf.string, SCALAR)]
        (text,) = numpy_function(lambda values: (self._decode(values).encode(),), [ids], outputs)
        return text

    def _encode_bytes(self, text: Any) -> np.ndarray:
        # A scalar string is bytes in a graph, and an array of shape [] in eager mode.
        return np.asarray(self._encode(np.asarray(text).item().decode()), np.int32)

    def _encode_many(self, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        encoded = [self._encode_bytes(text) for text in texts]
        lengths = np.array([len(row) for row in encoded], np.int64)
        return np.concatenate([*encoded, np.zeros(0, np.int32)]).astype(np.int32), lengths

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SeqioVocabulary):
            return NotImplemented
        return self.tokenizer.fingerprint == other.tokenizer.fingerprint

    def __hash__(self) -> int:
        return hash(self.tokenizer.fingerprint)

    def __repr__(self) -> str:
        return f"SeqioVocabulary({self.path!r})"
