"""Makes masked sentence pairs of seqio tasks with the functions of data/pretraining.

A call from a tf.data pipeline to Python is slower than making a pair. Therefore a document is cut
into all of its windows in one call, and the pairs of a batch of windows are made in one call.
Padded arrays are the format that tf.data batches and unbatches quickly.

The functions are the training loader's; seqio provides the random seeds.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import seqio
import tensorflow as tf

from bert_jax.config.data import Masking, SentencePairs
from bert_jax.data.corpus.shards import DocumentPart
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
    window_phase,
    windows_per_document,
)
from bert_jax.data.seqio.tf_numpy import (
    MATRIX,
    SCALAR,
    VECTOR,
    Dataset,
    TensorDict,
    no_autograph,
    numpy_function,
)
from bert_jax.data.seqio.vocabulary import SeqioVocabulary
from bert_jax.errors import UserError


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
    phase = window_phase(splitmix64(seed), 0)
    for window_index in range(num_windows):
        # The seed is hashed before the number of the window is mixed in: both are small, so that
        # their XOR alone would give many windows the same key.
        key = splitmix64(splitmix64(seed) ^ window_index)
        rng = ExampleRng(key)
        target_seq_length = sample_target_seq_length(max_num_tokens, pair_config, rng)
        offset = window_offset(len(ids), window_index, num_windows, max_num_tokens, phase)
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


# The documents are read a second time for the segments B of random pairs: documents are shuffled,
# interleaved, and their windows are shuffled. A few long documents are enough to mix well.
DOCUMENT_SHUFFLE_BUFFER = 32
INTERLEAVED_DOCUMENTS = 16
WINDOW_SHUFFLE_BUFFER = 1024
# Number of windows for which pairs are made in one call.
WINDOW_BATCH_SIZE = 64
# After this many batches of one document, assume that there is no other document.
MAX_SINGLE_DOCUMENT_BATCHES = 256

# Fields with the length of the sequence, and with the number of predictions.
_TOKEN_FIELDS = ("input_ids", "token_type_ids")
_PREDICTION_FIELDS = ("masked_lm_positions", "masked_lm_ids")
# Names, dtypes and shapes of the elements of a WindowBatch.
_WINDOW_FIELDS = {
    "document": (tf.int64, VECTOR),
    "ids": (tf.int32, MATRIX),
    "tokens": (tf.int64, VECTOR),
    "sentence_ends": (tf.int32, MATRIX),
    "sentences": (tf.int64, VECTOR),
}


@dataclass(frozen=True)
class MaskedPairs:
    """Makes masked sentence pairs from encoded documents.

    The number of pairs of a document is its length divided by a pair's. The segment B of a
    random pair comes from a second, shuffled pass over the documents, never from a document with
    the same text. `sequence_length` sets "input_ids" (L) and "masked_lm_positions" (P).
    """

    vocabulary: SeqioVocabulary
    pairs: SentencePairs
    masking: Masking
    sequence_length: Mapping[str, int] | None = None

    def __call__(self, dataset: Dataset) -> Dataset:
        seq_length, max_predictions_per_seq = self._lengths()
        num_special_tokens = self.vocabulary.tokenizer.template.num_pair_special_tokens
        cut_windows = _WindowCutter(seq_length - num_special_tokens, self.pairs)
        selected_documents = dataset.filter(
            no_autograph(lambda document: tf.equal(document["dropped"], b""))
        )
        windows: Dataset = seqio.map_over_dataset(cut_windows, num_seeds=1)(selected_documents)
        window_batches = tf.data.Dataset.zip(
            (
                windows.unbatch().padded_batch(WINDOW_BATCH_SIZE),
                _batches_with_two_documents(_interleave(selected_documents, cut_windows)),
            )
        )
        build_pairs = no_autograph(_PairBuilder(self, seq_length, max_predictions_per_seq))
        padded_pairs = window_batches.map(
            build_pairs, num_parallel_calls=tf.data.AUTOTUNE
        ).unbatch()
        return padded_pairs.map(no_autograph(_trim_padding))

    def _lengths(self) -> tuple[int, int]:
        lengths = self.sequence_length or {}
        seq_length, max_predictions_per_seq = (
            lengths.get("input_ids"),
            lengths.get("masked_lm_positions"),
        )
        if (
            seq_length is None
            or max_predictions_per_seq is None
            or seq_length < self.vocabulary.tokenizer.template.num_pair_special_tokens + 2
            or max_predictions_per_seq < 1
        ):
            raise UserError(
                f"sequence_length is {dict(lengths)}; expected the length and the largest number "
                "of masked positions, as in {'input_ids': 128, 'masked_lm_positions': 20}"
            )
        return seq_length, max_predictions_per_seq


class _WindowCutter:
    """Cuts a document into all its windows, given a seed."""

    def __init__(self, max_num_tokens: int, pairs: SentencePairs):
        self._max_num_tokens = max_num_tokens
        self._pairs = pairs

    def __call__(self, document: TensorDict, seed: tuple[tf.Tensor, tf.Tensor]) -> TensorDict:
        outputs = {**_WINDOW_FIELDS, "target": (tf.int64, VECTOR), "key": (tf.int64, VECTOR)}
        inputs = [document["ids"], document["sentence_ends"], tf.stack(seed)]
        arrays = numpy_function(self._cut, inputs, list(outputs.values()))
        return dict(zip(outputs, arrays, strict=True))

    def _cut(self, ids: np.ndarray, ends: np.ndarray, seed: np.ndarray) -> tuple[Any, ...]:
        # A hash of the text: the same id in every epoch, shard and pass.
        name = hashlib.blake2b(ids.tobytes(), digest_size=7).digest()
        # seqio gives a pair of numbers, as TensorFlow's stateless generators take them.
        combined_seed = (int(seed[0]) << 32) ^ int(seed[1])
        window_batch, targets, keys = cut_document(
            int.from_bytes(name), ids, ends, combined_seed, self._max_num_tokens, self._pairs
        )
        return *window_batch, targets, keys.astype(np.int64)


class _PairBuilder:
    """Makes padded masked pairs, and their lengths, from windows and windows for random B."""

    def __init__(self, settings: MaskedPairs, seq_length: int, max_predictions_per_seq: int):
        self._settings = settings
        self._seq_length = seq_length
        self._max_predictions_per_seq = max_predictions_per_seq
        self._vocab_arrays = VocabArrays.from_tokenizer(settings.vocabulary.tokenizer)

    def __call__(self, windows: TensorDict, others: tuple[tf.Tensor, ...]) -> TensorDict:
        outputs = {
            **{name: (tf.int32, (None, self._seq_length)) for name in _TOKEN_FIELDS},
            "length": (tf.int32, VECTOR),
            **{
                name: (tf.int32, (None, self._max_predictions_per_seq))
                for name in _PREDICTION_FIELDS
            },
            "predictions": (tf.int32, VECTOR),
            "next_sentence_labels": (tf.int32, VECTOR),
        }
        inputs = [*_window_tensors(windows), windows["target"], windows["key"], *others]
        arrays = numpy_function(self._make, inputs, list(outputs.values()))
        return dict(zip(outputs, arrays, strict=True))

    def _make(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        fields = make_masked_pairs(
            WindowBatch(*arrays[:5]),
            arrays[5],
            arrays[6].astype(np.uint64),
            WindowBatch(*arrays[7:]),
            self._seq_length,
            self._max_predictions_per_seq,
            self._settings.pairs,
            self._settings.masking,
            self._vocab_arrays,
        )
        return (
            *(fields[name] for name in _TOKEN_FIELDS),
            fields["attention_mask"].sum(axis=1, dtype=np.int32),
            *(fields[name] for name in _PREDICTION_FIELDS),
            fields["masked_lm_weights"].sum(axis=1).astype(np.int32),
            fields["next_sentence_labels"],
        )


def _trim_padding(pair: TensorDict) -> TensorDict:
    """Removes the padding of a pair."""
    return {
        **{name: pair[name][: pair["length"]] for name in _TOKEN_FIELDS},
        **{name: pair[name][: pair["predictions"]] for name in _PREDICTION_FIELDS},
        "next_sentence_labels": pair["next_sentence_labels"],
    }


def _interleave(documents: Dataset, cut_windows: _WindowCutter) -> Dataset:
    """Yields shuffled windows of all documents in endless passes, with the number of the pass."""

    @no_autograph
    def one_pass(pass_index: tf.Tensor, seed: Any) -> Dataset:
        @no_autograph
        def cut_with_pass_index(document_index: tf.Tensor, document: TensorDict) -> TensorDict:
            windows = cut_windows(document, (seed, document_index))
            return {**windows, "pass": tf.ones_like(windows["target"]) * pass_index}

        shuffled = documents.shuffle(DOCUMENT_SHUFFLE_BUFFER, seed=seed).enumerate()
        interleaved = shuffled.map(cut_with_pass_index).interleave(
            no_autograph(tf.data.Dataset.from_tensor_slices), cycle_length=INTERLEAVED_DOCUMENTS
        )
        return interleaved.shuffle(WINDOW_SHUFFLE_BUFFER, seed=seed + 1)

    @no_autograph
    def with_seed(
        pass_index: tf.Tensor, seed: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, ...]:
        return pass_index, seed[0]

    passes: Dataset = seqio.map_over_dataset(with_seed, num_seeds=1)(tf.data.Dataset.range(2**30))
    return passes.flat_map(one_pass)


def _batches_with_two_documents(windows: Dataset) -> Dataset:
    """Batches windows so that each batch has at least two documents, with carried windows."""

    def step(*arrays: np.ndarray) -> tuple[Any, ...]:
        carried, window_batch, passes, num_batches = (
            WindowBatch(*arrays[:5]),
            WindowBatch(*arrays[5:10]),
            arrays[10],
            int(arrays[11]),
        )
        window_batch, carried = carry_over(carried, window_batch)
        ready = len(carried.document_ids) == 2
        if not ready and (passes.max() > 0 or num_batches >= MAX_SINGLE_DOCUMENT_BATCHES):
            raise UserError(
                "all documents have the same text; expected another text for the segments B"
            )
        return *window_batch, *carried, ready

    @no_autograph
    def scan(state: tuple[Any, Any], windows: TensorDict) -> tuple[Any, Any]:
        carried, num_batches = state
        inputs = [*carried, *_window_tensors(windows), windows["pass"], num_batches]
        shapes = list(_WINDOW_FIELDS.values())
        *both_batches, ready = numpy_function(step, inputs, [*shapes, *shapes, (tf.bool, SCALAR)])
        return (tuple(both_batches[5:]), num_batches + 1), (tuple(both_batches[:5]), ready)

    empty = tuple(tf.zeros([0] * len(shape), dtype) for dtype, shape in _WINDOW_FIELDS.values())
    window_batches: Dataset = windows.padded_batch(WINDOW_BATCH_SIZE).scan(
        (empty, tf.constant(0, tf.int64)), scan
    )
    return window_batches.filter(no_autograph(lambda window_batch, ready: ready)).map(
        no_autograph(lambda window_batch, ready: window_batch)
    )


def _window_tensors(windows: TensorDict) -> list[tf.Tensor]:
    return [windows[name] for name in _WINDOW_FIELDS]
