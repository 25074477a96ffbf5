"""Makes windows and masked pairs in batches of padded arrays, for calls from TensorFlow.

A call from a tf.data pipeline to Python is slower than making a pair. Therefore a document is cut
into all of its windows in one call, and the pairs of a batch of windows are made in one call.
Padded arrays are the format that tf.data batches and unbatches quickly.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.config import Masking, SentencePairs
from bert_jax.data.corpus.records import DocumentPart
from bert_jax.data.pretraining.masking import mask_tokens
from bert_jax.data.pretraining.rng import ExampleRng, splitmix64
from bert_jax.data.pretraining.sentence_pairs import (
    SentencePair,
    collate_pairs,
    make_pair,
    sample_target_seq_length,
)
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.data.pretraining.windows import (
    TextWindow,
    take_sentences,
    take_sentences_from_offset,
    window_offset,
    windows_per_document,
)


class WindowBatch(NamedTuple):
    """Holds n windows as padded arrays.

    Attributes:
      document_ids: [n] int64, a hash of the text of each window's document.
      ids: [n, T] int32, padded.
      num_tokens: [n] int64, lengths without padding.
      sentence_ends: [n, S] int32, padded.
      num_sentences: [n] int64, lengths without padding.
    """

    document_ids: np.ndarray
    ids: np.ndarray
    num_tokens: np.ndarray
    sentence_ends: np.ndarray
    num_sentences: np.ndarray

    @classmethod
    def from_windows(cls, windows: Sequence[tuple[int, TextWindow]]) -> "WindowBatch":
        """Makes a batch of (document id, window)."""
        document_ids = np.array([document_id for document_id, _ in windows], np.int64)
        ids = _pad([window.ids for _, window in windows])
        return cls(document_ids, *ids, *_pad([window.sentence_ends for _, window in windows]))

    def windows(self) -> Iterator[tuple[int, TextWindow]]:
        """Yields (document id, window) for each window."""
        for document_id, ids, num_tokens, ends, num_sentences in zip(
            self.document_ids.tolist(),
            self.ids,
            self.num_tokens.tolist(),
            self.sentence_ends,
            self.num_sentences.tolist(),
            strict=True,
        ):
            yield document_id, TextWindow(ids[:num_tokens], ends[:num_sentences])


def _pad(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(row) for row in arrays], np.int64)
    padded = np.zeros((len(arrays), lengths.max(initial=0)), np.int32)
    for padded_row, row in zip(padded, arrays, strict=True):
        padded_row[: len(row)] = row
    return padded, lengths


def cut_document(
    document_id: int,
    ids: np.ndarray,
    sentence_ends: np.ndarray,
    seed: int,
    max_num_tokens: int,
    pair_config: SentencePairs,
) -> tuple[WindowBatch, np.ndarray, np.ndarray]:
    """Returns all n windows of a document, their target lengths and their random keys, [n] each."""
    part = DocumentPart(0, 0, ids, sentence_ends)
    num_windows = int(windows_per_document(np.array(len(ids)), max_num_tokens))
    windows, target_seq_lengths, keys = [], [], []
    for window_index in range(num_windows):
        key = splitmix64(splitmix64(seed) ^ window_index)
        rng = ExampleRng(key)
        target_seq_length = sample_target_seq_length(max_num_tokens, pair_config, rng)
        offset = window_offset(len(ids), window_index, num_windows, max_num_tokens, rng)
        windows.append(
            (document_id, take_sentences_from_offset(part, offset, target_seq_length, iter(())))
        )
        target_seq_lengths.append(target_seq_length)
        keys.append(key)
    return (
        WindowBatch.from_windows(windows),
        np.array(target_seq_lengths, np.int64),
        np.array(keys, np.uint64),
    )


def carry_over(carried: WindowBatch, window_batch: WindowBatch) -> tuple[WindowBatch, WindowBatch]:
    """Adds the windows carried from earlier batches; returns the batch and what to carry next.

    The last window and the last one of another document, if any, are carried to the next batch. As
    soon as there have been two documents, each batch therefore has windows of at least two.
    """
    windows = [*window_batch.windows(), *carried.windows()]
    recent = next(iter(reversed(list(window_batch.windows()))))
    earlier = [
        w
        for w in (*reversed(list(window_batch.windows())), *carried.windows())
        if w[0] != recent[0]
    ]
    return WindowBatch.from_windows(windows), WindowBatch.from_windows([recent, *earlier[:1]])


def make_masked_pairs(
    window_batch: WindowBatch,
    target_seq_lengths: np.ndarray,
    keys: np.ndarray,
    others: WindowBatch,
    seq_length: int,
    max_predictions_per_seq: int,
    pair_config: SentencePairs,
    masking: Masking,
    vocab_arrays: VocabArrays,
) -> dict[str, np.ndarray]:
    """Makes a masked sentence pair from each window; returns the batch fields of n padded rows.

    The segment B of a random pair is a window of `others`, which must have windows of at least two
    documents.
    """
    candidates = list(others.windows())
    sentence_pairs: list[SentencePair] = []
    for n, (document_id, window) in enumerate(window_batch.windows()):
        other = next(
            w for d, w in (*candidates[n % len(candidates) :], *candidates) if d != document_id
        )

        def random_next_text(num_tokens: int, other: TextWindow = other) -> np.ndarray:
            part = DocumentPart(0, 0, other.ids, other.sentence_ends)
            return take_sentences(part, 0, num_tokens, iter(())).ids

        max_num_tokens = seq_length - vocab_arrays.template.num_pair_special_tokens
        rng = ExampleRng(int(keys[n]))
        sentence_pairs.append(
            make_pair(
                window,
                int(target_seq_lengths[n]),
                max_num_tokens,
                random_next_text,
                pair_config,
                rng,
            )
        )
    fields = collate_pairs(sentence_pairs, seq_length, vocab_arrays)
    attention_mask = fields["attention_mask"]
    return fields | mask_tokens(
        fields["input_ids"], attention_mask, keys, masking, max_predictions_per_seq, vocab_arrays
    )
