"""Windows of text many at a time, as padded arrays: what passes between TensorFlow and NumPy.

One call from a tf.data pipeline into Python costs more than making a pair; so a document is cut
into all of its windows at once, and pairs are made for a group of windows at once. Padded arrays
are the only ones that tf.data takes apart and puts together quickly.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.config import Masking, Pairs
from bert_jax.data.masking import mask_rows
from bert_jax.data.pairs import PAIR_SPECIALS, Pair, make_pair, pair_rows, target_tokens
from bert_jax.data.random import Draws, mix
from bert_jax.data.records import DocumentPart
from bert_jax.data.token_table import TokenTable
from bert_jax.data.windows import Window, slot_counts, take_from, take_sentences, window_offset


class WindowGroup(NamedTuple):
    """n windows.

    documents: [n] int64, a name for the text of the document that each one is from.
    ids: [n, T] int32, padded; tokens: [n] int64, how many there are.
    sentence_ends: [n, S] int32, padded; sentences: [n] int64, how many there are.
    """

    documents: np.ndarray
    ids: np.ndarray
    tokens: np.ndarray
    sentence_ends: np.ndarray
    sentences: np.ndarray

    @classmethod
    def of(cls, windows: Sequence[tuple[int, Window]]) -> "WindowGroup":
        """A group of (document, window)."""
        documents = np.array([document for document, _ in windows], np.int64)
        ids = _padded([window.ids for _, window in windows])
        return cls(documents, *ids, *_padded([window.sentence_ends for _, window in windows]))

    def windows(self) -> Iterator[tuple[int, Window]]:
        """Each (document, window)."""
        for document, ids, tokens, ends, sentences in zip(
            self.documents.tolist(),
            self.ids,
            self.tokens.tolist(),
            self.sentence_ends,
            self.sentences.tolist(),
            strict=True,
        ):
            yield document, Window(ids[:tokens], ends[:sentences])


def _padded(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(row) for row in rows], np.int64)
    padded = np.zeros((len(rows), lengths.max(initial=0)), np.int32)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return padded, lengths


def cut_document(
    document: int, ids: np.ndarray, sentence_ends: np.ndarray, seed: int, width: int, pairs: Pairs
) -> tuple[WindowGroup, np.ndarray, np.ndarray]:
    """All n windows of a document, the tokens wanted of each [n] int64, their keys [n] uint64."""
    part = DocumentPart(0, 0, ids, sentence_ends)
    slots = int(slot_counts(np.array(len(ids)), width))
    windows, targets, keys = [], [], []
    for slot in range(slots):
        key = mix(mix(seed) ^ slot)
        draws = Draws(key)
        target = target_tokens(width, pairs, draws)
        offset = window_offset(len(ids), slot, slots, width, draws)
        windows.append((document, take_from(part, offset, target, iter(()))))
        targets.append(target)
        keys.append(key)
    return WindowGroup.of(windows), np.array(targets, np.int64), np.array(keys, np.uint64)


def with_spares(spares: WindowGroup, group: WindowGroup) -> tuple[WindowGroup, WindowGroup]:
    """The group with the spares of earlier groups behind, and the spares for the next one.

    Spares are the last window and the last one of another document, if there has been one: so for
    any document there is a window of another one, as soon as there have been two.
    """
    windows = [*group.windows(), *spares.windows()]
    recent = next(iter(reversed(list(group.windows()))))
    earlier = [
        w for w in (*reversed(list(group.windows())), *spares.windows()) if w[0] != recent[0]
    ]
    return WindowGroup.of(windows), WindowGroup.of([recent, *earlier[:1]])


def make_pairs(
    group: WindowGroup,
    targets: np.ndarray,
    keys: np.ndarray,
    others: WindowGroup,
    length: int,
    max_predictions: int,
    pairs: Pairs,
    masking: Masking,
    table: TokenTable,
) -> dict[str, np.ndarray]:
    """Masked rows for the windows of a group, padded; B of a random pair is a window of `others`.

    `others` has windows of at least two documents. Returns batch fields of n rows.
    """
    candidates = list(others.windows())
    made: list[Pair] = []
    for n, (document, window) in enumerate(group.windows()):
        other = next(
            w for d, w in (*candidates[n % len(candidates) :], *candidates) if d != document
        )

        def other_text(tokens: int, other: Window = other) -> np.ndarray:
            part = DocumentPart(0, 0, other.ids, other.sentence_ends)
            return take_sentences(part, 0, tokens, iter(())).ids

        width = length - PAIR_SPECIALS
        draws = Draws(int(keys[n]))
        made.append(make_pair(window, int(targets[n]), width, other_text, pairs, draws))
    rows = pair_rows(made, length, table)
    attention_mask = rows["attention_mask"]
    return rows | mask_rows(
        rows["input_ids"], attention_mask, keys, masking, max_predictions, table
    )
