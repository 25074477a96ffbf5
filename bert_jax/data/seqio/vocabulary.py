"""Our vocabularies as seqio sees them: one engine for tasks, the loader and inference."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from bert_jax.data.seqio.tf_numpy import SCALAR, VECTOR, numpy_function
from bert_jax.text.tokenizer import Tokenizer, load_tokenizer


class SeqioVocabulary(seqio.Vocabulary):
    """A `bert_jax.text` vocabulary behind seqio's interface, loaded at first use.

    It has no end-of-sequence id: seqio cuts decoded text at that id, and [SEP] stands twice in a
    row. Two of them are equal when they make the same ids, as mixtures demand of their tasks.
    """

    def __init__(self, path: str):
        super().__init__(extra_ids=0)
        self.path = path

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
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
        """ids int32 [T] of a scalar string, or a RaggedTensor [N, None] of strings [N]."""
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
        """Text of ids [T]."""
        outputs = [(tf.string, SCALAR)]
        (text,) = numpy_function(lambda values: (self._decode(values).encode(),), [ids], outputs)
        return text

    def _encode_bytes(self, text: Any) -> np.ndarray:
        # A scalar string arrives as bytes from a graph and as an array of none when run eagerly.
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
