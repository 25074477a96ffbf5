"""Documents -> windows of text: how many examples a document gives and where each one starts.

BERT walks each document once and cuts it into chunks. Here a document of T tokens has
round(T / width) slots instead, each with a window that starts somewhere else in every epoch, so
that an example can be made from its number alone. On average a token is seen once in an epoch, as
in the walk; at both edges of a long document half as often.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bert_jax.data.random import Draws, Stream
from bert_jax.data.records import DocumentPart


class Window(NamedTuple):
    """Whole consecutive sentences: ids [T], and sentence_ends [S] relative to the window."""

    ids: np.ndarray
    sentence_ends: np.ndarray


def slot_counts(document_tokens: np.ndarray, width: int) -> np.ndarray:
    """Examples per document [D] int64 for windows of `width` tokens; each has at least one."""
    return np.maximum(1, np.rint(np.asarray(document_tokens) / width).astype(np.int64))


def window_offset(tokens: int, slot: int, slots: int, width: int, draws: Draws) -> int:
    """The token in which the window of a slot begins, before it is moved to a sentence's start.

    Starts are uniform in the slot's share of [-width / 2, tokens - width / 2), held within
    [0, tokens - width]: only documents shorter than the width give shorter windows.
    """
    share = tokens / slots
    start = int((slot + draws.uniform(Stream.WINDOW)) * share - width / 2)
    return min(max(start, 0), max(tokens - width, 0))


def sentence_at(part: DocumentPart, offset: int) -> int:
    """Number of the sentence that holds token `offset` of a part."""
    return int(part.sentence_ends.searchsorted(offset, side="right"))


def take_from(
    part: DocumentPart, offset: int, target: int, following: Iterator[DocumentPart]
) -> Window:
    """As `take_sentences`, from the first sentence that starts at token `offset` or later.

    Where no sentence of the document does, from its last one. The sentence that holds the offset
    would be a longer one than most, and so would A, which begins with it.
    """
    sentence = int(part.sentence_ends.searchsorted(offset)) + 1 if offset else 0
    if sentence == len(part.sentence_ends):
        later = next(following, None)
        part, sentence = (part, sentence - 1) if later is None else (later, 0)
    return take_sentences(part, sentence, target, following)


def take_sentences(
    part: DocumentPart, sentence: int, target: int, following: Iterator[DocumentPart]
) -> Window:
    """Whole sentences from one on until there are `target` tokens or the document ends.

    Args:
      part: where the window begins; sentence: the first one, in [0, S).
      following: the later parts of the document, read only when they are needed.
    """
    ends = part.sentence_ends
    begin = int(ends[sentence - 1]) if sentence else 0
    stop = int(ends.searchsorted(begin + target)) + 1
    if stop <= len(ends):
        return Window(part.ids[begin : ends[stop - 1]], ends[sentence:stop] - np.uint32(begin))
    ids, window_ends = part.ids[begin:], ends[sentence:] - np.uint32(begin)
    rest = next(following, None)
    if rest is None:
        return Window(ids, window_ends)
    more = take_sentences(rest, 0, target - len(ids), following)
    return Window(
        np.concatenate((ids, more.ids)),
        np.concatenate((window_ends, more.sentence_ends + np.uint32(len(ids)))),
    )
