"""After a text task's cache placeholder: encoded documents -> masked sentence pairs.

The pairs are made by the functions that the training loader uses; seqio gives the randomness.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from bert_jax.data.config import Masking, Pairs
from bert_jax.data.numpy_steps import ROW, ROWS, SCALAR, numpy_step, plain
from bert_jax.data.pairs import PAIR_SPECIALS
from bert_jax.data.preprocessors import Dataset, Example
from bert_jax.data.seqio_vocabulary import SeqioVocabulary
from bert_jax.data.token_table import TokenTable
from bert_jax.data.window_groups import WindowGroup, cut_document, make_pairs, with_spares
from bert_jax.errors import UserError

# The second reading, which random B comes from: documents shuffled, documents read side by side,
# and windows shuffled. Few documents are enough when they are books, and short ones fill the last.
SHUFFLED_DOCUMENTS = 32
MINGLED_DOCUMENTS = 16
SHUFFLED_WINDOWS = 1024
# Windows that pairs are made for at a time.
GROUP = 64
# After so many groups of one document without another one, there is no other one.
PATIENCE = 256

# What is as long as the row, and what as the predictions.
_BY_TOKEN = ("input_ids", "token_type_ids")
_BY_PREDICTION = ("masked_lm_positions", "masked_lm_ids")
# Names, dtypes and shapes of a WindowGroup.
_GROUP = {
    "document": (tf.int64, ROW),
    "ids": (tf.int32, ROWS),
    "tokens": (tf.int64, ROW),
    "sentence_ends": (tf.int32, ROWS),
    "sentences": (tf.int64, ROW),
}


@dataclass(frozen=True)
class MaskedPairs:
    """Encoded documents -> masked sentence pairs.

    A document gives as many pairs as it has times the length; B of a random pair comes from a
    second, shuffled reading of the documents, never from a document with the same text.
    `sequence_length` gives "input_ids" (L) and "masked_lm_positions" (P).
    """

    vocabulary: SeqioVocabulary
    pairs: Pairs
    masking: Masking
    sequence_length: Mapping[str, int] | None = None

    def __call__(self, dataset: Dataset) -> Dataset:
        length, predictions = self._lengths()
        cut = _Cutter(length - PAIR_SPECIALS, self.pairs)
        kept = dataset.filter(plain(lambda document: tf.equal(document["dropped"], b"")))
        windows: Dataset = seqio.map_over_dataset(cut, num_seeds=1)(kept)
        groups = tf.data.Dataset.zip(
            (
                windows.unbatch().padded_batch(GROUP),
                _with_two_documents(_mingled_windows(kept, cut)),
            )
        )
        maker = plain(_PairMaker(self, length, predictions))
        rows = groups.map(maker, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
        return rows.map(plain(_trimmed))

    def _lengths(self) -> tuple[int, int]:
        given = self.sequence_length or {}
        length, predictions = given.get("input_ids"), given.get("masked_lm_positions")
        if length is None or predictions is None or length < PAIR_SPECIALS + 2 or predictions < 1:
            raise UserError(
                f"sequence_length is {dict(given)}; expected the row length and the most masked "
                "positions, as in {'input_ids': 128, 'masked_lm_positions': 20}"
            )
        return length, predictions


class _Cutter:
    """A document and a seed -> all its windows."""

    def __init__(self, width: int, pairs: Pairs):
        self._width = width
        self._pairs = pairs

    def __call__(self, document: Example, seed: tuple[tf.Tensor, tf.Tensor]) -> Example:
        outputs = {**_GROUP, "target": (tf.int64, ROW), "key": (tf.int64, ROW)}
        inputs = [document["ids"], document["sentence_ends"], tf.stack(seed)]
        arrays = numpy_step(self._cut, inputs, list(outputs.values()))
        return dict(zip(outputs, arrays, strict=True))

    def _cut(self, ids: np.ndarray, ends: np.ndarray, seed: np.ndarray) -> tuple[Any, ...]:
        # Named by its text: the same name in every epoch, shard and reading.
        name = hashlib.blake2b(ids.tobytes(), digest_size=7).digest()
        number = (int(seed[0]) << 32) ^ int(seed[1])
        group, targets, keys = cut_document(
            int.from_bytes(name), ids, ends, number, self._width, self._pairs
        )
        return *group, targets, keys.astype(np.int64)


class _PairMaker:
    """A group of windows and one of other windows -> masked pairs, padded, and their lengths."""

    def __init__(self, settings: MaskedPairs, length: int, predictions: int):
        self._settings = settings
        self._length = length
        self._predictions = predictions
        self._table = TokenTable.from_vocabulary(settings.vocabulary.vocabulary)

    def __call__(self, windows: Example, others: tuple[tf.Tensor, ...]) -> Example:
        outputs = {
            **{name: (tf.int32, (None, self._length)) for name in _BY_TOKEN},
            "length": (tf.int32, ROW),
            **{name: (tf.int32, (None, self._predictions)) for name in _BY_PREDICTION},
            "predictions": (tf.int32, ROW),
            "next_sentence_labels": (tf.int32, ROW),
        }
        inputs = [*_group(windows), windows["target"], windows["key"], *others]
        arrays = numpy_step(self._make, inputs, list(outputs.values()))
        return dict(zip(outputs, arrays, strict=True))

    def _make(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        fields = make_pairs(
            WindowGroup(*arrays[:5]),
            arrays[5],
            arrays[6].astype(np.uint64),
            WindowGroup(*arrays[7:]),
            self._length,
            self._predictions,
            self._settings.pairs,
            self._settings.masking,
            self._table,
        )
        return (
            *(fields[name] for name in _BY_TOKEN),
            fields["attention_mask"].sum(axis=1, dtype=np.int32),
            *(fields[name] for name in _BY_PREDICTION),
            fields["masked_lm_weights"].sum(axis=1).astype(np.int32),
            fields["next_sentence_labels"],
        )


def _trimmed(row: Example) -> Example:
    """A pair without its padding."""
    return {
        **{name: row[name][: row["length"]] for name in _BY_TOKEN},
        **{name: row[name][: row["predictions"]] for name in _BY_PREDICTION},
        "next_sentence_labels": row["next_sentence_labels"],
    }


def _mingled_windows(documents: Dataset, cut: _Cutter) -> Dataset:
    """Windows of all documents, shuffled, again and again; each knows the number of its pass."""

    @plain
    def one_pass(number: tf.Tensor, seed: Any) -> Dataset:
        @plain
        def cut_with_number(reading: tf.Tensor, document: Example) -> Example:
            windows = cut(document, (seed, reading))
            return {**windows, "pass": tf.ones_like(windows["target"]) * number}

        shuffled = documents.shuffle(SHUFFLED_DOCUMENTS, seed=seed).enumerate()
        mingled = shuffled.map(cut_with_number).interleave(
            plain(tf.data.Dataset.from_tensor_slices), cycle_length=MINGLED_DOCUMENTS
        )
        return mingled.shuffle(SHUFFLED_WINDOWS, seed=seed + 1)

    @plain
    def with_seed(number: tf.Tensor, seed: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
        return number, seed[0]

    passes: Dataset = seqio.map_over_dataset(with_seed, num_seeds=1)(tf.data.Dataset.range(2**30))
    return passes.flat_map(one_pass)


def _with_two_documents(windows: Dataset) -> Dataset:
    """Groups of windows, each of at least two documents: spares of earlier groups help out."""

    def step(*arrays: np.ndarray) -> tuple[Any, ...]:
        spares, group, passes, seen = (
            WindowGroup(*arrays[:5]),
            WindowGroup(*arrays[5:10]),
            arrays[10],
            int(arrays[11]),
        )
        group, spares = with_spares(spares, group)
        ready = len(spares.documents) == 2
        if not ready and (passes.max() > 0 or seen >= PATIENCE):
            raise UserError("all documents have the same text; pairs take B from another document")
        return *group, *spares, ready

    @plain
    def scan(state: tuple, windows: Example) -> tuple:
        spares, seen = state
        inputs = [*spares, *_group(windows), windows["pass"], seen]
        shapes = list(_GROUP.values())
        *both, ready = numpy_step(step, inputs, [*shapes, *shapes, (tf.bool, SCALAR)])
        return (tuple(both[5:]), seen + 1), (tuple(both[:5]), ready)

    empty = tuple(tf.zeros([0] * len(shape), dtype) for dtype, shape in _GROUP.values())
    groups: Dataset = windows.padded_batch(GROUP).scan((empty, tf.constant(0, tf.int64)), scan)
    return groups.filter(plain(lambda group, ready: ready)).map(plain(lambda group, ready: group))


def _group(windows: Example) -> list[tf.Tensor]:
    return [windows[name] for name in _GROUP]
