"""Documents -> windows of text: how many examples a document gives and where each one starts.

BERT walks each document once and cuts it into chunks. Here a document of T tokens has
round(T / width) slots instead, each with a window that starts somewhere else in every epoch, so
that an example can be made from its number alone. On average a token is seen once in an epoch, as
in the walk; at both edges of a long document half as often.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bert_jax.data.corpus.records import DocumentPart
from bert_jax.data.pretraining.rng import ExampleRng, Stream


class TextWindow(NamedTuple):
    """Whole consecutive sentences: ids [T], and sentence_ends [S] relative to the window."""

    ids: np.ndarray
    sentence_ends: np.ndarray


def windows_per_document(tokens_per_document: np.ndarray, max_num_tokens: int) -> np.ndarray:
    """Examples per document [D] int64 for windows of `width` tokens; each has at least one."""
    return np.maximum(1, np.rint(np.asarray(tokens_per_document) / max_num_tokens).astype(np.int64))


def window_offset(
    num_tokens: int, window_index: int, num_windows: int, max_num_tokens: int, rng: ExampleRng
) -> int:
    """The token in which the window of a slot begins, before it is moved to a sentence's start.

    Starts are uniform in the slot's share of [-width / 2, tokens - width / 2), held within
    [0, tokens - width]: only documents shorter than the width give shorter windows.
    """
    tokens_per_window = num_tokens / num_windows
    start = int(
        (window_index + rng.uniform(Stream.WINDOW_OFFSET)) * tokens_per_window - max_num_tokens / 2
    )
    return min(max(start, 0), max(num_tokens - max_num_tokens, 0))


def sentence_at_token(part: DocumentPart, offset: int) -> int:
    """Number of the sentence that holds token `offset` of a part."""
    return int(part.sentence_ends.searchsorted(offset, side="right"))


def take_sentences_from_offset(
    part: DocumentPart, offset: int, target_seq_length: int, later_parts: Iterator[DocumentPart]
) -> TextWindow:
    """As `take_sentences`, from the first sentence that starts at token `offset` or later.

    Where no sentence of the document does, from its last one. The sentence that holds the offset
    would be a longer one than most, and so would A, which begins with it.
    """
    first_sentence = int(part.sentence_ends.searchsorted(offset)) + 1 if offset else 0
    if first_sentence == len(part.sentence_ends):
        next_part = next(later_parts, None)
        part, first_sentence = (part, first_sentence - 1) if next_part is None else (next_part, 0)
    return take_sentences(part, first_sentence, target_seq_length, later_parts)


def take_sentences(
    part: DocumentPart,
    first_sentence: int,
    target_seq_length: int,
    later_parts: Iterator[DocumentPart],
) -> TextWindow:
    """Whole sentences from one on until there are `target` tokens or the document ends.

    Args:
      part: where the window begins; sentence: the first one, in [0, S).
      following: the later parts of the document, read only when they are needed.
    """
    ends = part.sentence_ends
    first_token = int(ends[first_sentence - 1]) if first_sentence else 0
    stop_sentence = int(ends.searchsorted(first_token + target_seq_length)) + 1
    if stop_sentence <= len(ends):
        return TextWindow(
            part.ids[first_token : ends[stop_sentence - 1]],
            ends[first_sentence:stop_sentence] - np.uint32(first_token),
        )
    ids, window_ends = part.ids[first_token:], ends[first_sentence:] - np.uint32(first_token)
    next_part = next(later_parts, None)
    if next_part is None:
        return TextWindow(ids, window_ends)
    remainder = take_sentences(next_part, 0, target_seq_length - len(ids), later_parts)
    return TextWindow(
        np.concatenate((ids, remainder.ids)),
        np.concatenate((window_ends, remainder.sentence_ends + np.uint32(len(ids)))),
    )
