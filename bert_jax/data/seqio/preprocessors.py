"""Defines the seqio preprocessors of text tasks, which call the functions of data/corpus.

Each one is a dataclass, because seqio sets its `sequence_length` and `bert-jax prepare` inspects
the preprocessors before a task's cache placeholder.

    CleanText, SplitSentences, EncodeSentences: text -> ids, sentence_ends, text_bytes, dropped
    -- cache placeholder: what `bert-jax prepare` writes --
    MaskedPairs (pair_preprocessor.py) -> masked sentence pairs

Dropped documents remain in the dataset without text, with the reason in `dropped`, for counting.
"""

from dataclasses import dataclass

import numpy as np
import seqio
import tensorflow as tf

from bert_jax.data.corpus.documents import NO_TOKENS, clean_document, encode_sentences
from bert_jax.data.seqio.tf_numpy import (
    SCALAR,
    VECTOR,
    Dataset,
    TensorDict,
    no_autograph,
    numpy_function,
)
from bert_jax.data.seqio.vocabulary import SeqioVocabulary
from bert_jax.text.sentences import get_sentence_splitter


@dataclass(frozen=True)
class SelectText:
    """Keeps one field of an example and renames it to "text"."""

    key: str

    def __call__(self, dataset: Dataset) -> Dataset:
        return dataset.map(no_autograph(lambda example: {"text": example[self.key]}))


@dataclass(frozen=True)
class CleanText:
    """Cleans {"text"} to {"text", "dropped"}; `dropped` is the reason, or "" to keep it."""

    def __call__(self, dataset: Dataset) -> Dataset:
        def clean(text: bytes) -> tuple[bytes, bytes]:
            cleaned, reason = clean_document(text.decode("utf-8", "surrogatepass"))
            return cleaned.encode(), reason.encode()

        @no_autograph
        def clean_example(example: TensorDict) -> TensorDict:
            outputs = [(tf.string, SCALAR), (tf.string, SCALAR)]
            text, dropped = numpy_function(clean, [example["text"]], outputs)
            return {"text": text, "dropped": dropped}

        return seqio.map_over_dataset(clean_example)(dataset)


@dataclass(frozen=True)
class SplitSentences:
    """Splits {"text", "dropped"} into {"sentences" [S], "text_bytes", "dropped"}."""

    splitter: str

    def __call__(self, dataset: Dataset) -> Dataset:
        splitter = get_sentence_splitter(self.splitter)

        def split(text: bytes, dropped: bytes) -> tuple[np.ndarray]:
            sentences = [] if dropped else splitter.split(text.decode())
            return (np.array([sentence.encode() for sentence in sentences], dtype=object),)

        @no_autograph
        def split_example(example: TensorDict) -> TensorDict:
            inputs = [example["text"], example["dropped"]]
            (sentences,) = numpy_function(split, inputs, [(tf.string, VECTOR)])
            return {
                "sentences": sentences,
                "text_bytes": tf.cast(tf.strings.length(example["text"]), tf.int64),
                "dropped": example["dropped"],
            }

        return seqio.map_over_dataset(split_example)(dataset)


@dataclass(frozen=True)
class EncodeSentences:
    """Encodes {"sentences", ...} as {"ids" int32 [T], "sentence_ends" int32 [S], ...}."""

    vocabulary: SeqioVocabulary

    def __call__(self, dataset: Dataset) -> Dataset:
        def encode(sentences: np.ndarray, dropped: bytes) -> tuple[np.ndarray, np.ndarray, bytes]:
            texts = [sentence.decode() for sentence in sentences]
            ids, ends = encode_sentences(texts, self.vocabulary.tokenizer)
            reason = dropped if len(ids) or dropped else NO_TOKENS.encode()
            return ids.astype(np.int32), ends.astype(np.int32), reason

        @no_autograph
        def encode_example(example: TensorDict) -> TensorDict:
            ids, ends, dropped = numpy_function(
                encode,
                [example["sentences"], example["dropped"]],
                [(tf.int32, VECTOR), (tf.int32, VECTOR), (tf.string, SCALAR)],
            )
            return {
                "ids": ids,
                "sentence_ends": ends,
                "text_bytes": example["text_bytes"],
                "dropped": dropped,
            }

        return seqio.map_over_dataset(encode_example)(dataset)
