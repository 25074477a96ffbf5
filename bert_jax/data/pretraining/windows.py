"""Cuts documents into windows of whole sentences, from which training examples are made.

BERT's create_pretraining_data.py goes through each document once and cuts it into chunks. Here a
document of T tokens has round(T / max_num_tokens) windows, and the start of each window is random
in every epoch. An example can therefore be made from its index alone. As in BERT, a token is in
one example of an epoch on average. Near the ends of a long document this differs: in the first
`max_num_tokens` tokens the average rises from 0.5 for the first token to 1.5, because starts before
the document are clipped to its beginning; the last tokens mirror this.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bert_jax.data.corpus.records import DocumentPart
from bert_jax.data.pretraining.rng import ExampleRng, Stream


class TextWindow(NamedTuple):
    """Holds consecutive whole sentences: ids [T], and sentence_ends [S] relative to the window."""

    ids: np.ndarray
    sentence_ends: np.ndarray


def windows_per_document(tokens_per_document: np.ndarray, max_num_tokens: int) -> np.ndarray:
    """Returns the number of windows [D] int64 of each document; it is at least one."""
    return np.maximum(1, np.rint(np.asarray(tokens_per_document) / max_num_tokens).astype(np.int64))


def window_offset(
    num_tokens: int, window_index: int, num_windows: int, max_num_tokens: int, rng: ExampleRng
) -> int:
    """Draws the token at which a window begins, before the start moves to a sentence boundary.

    [-max_num_tokens / 2, num_tokens - max_num_tokens / 2) is divided evenly among the windows. A
    start is uniform in its window's part of that range and then clipped to
    [0, num_tokens - max_num_tokens], so that only short documents give short windows.
    """
    tokens_per_window = num_tokens / num_windows
    start = int(
        (window_index + rng.uniform(Stream.WINDOW_OFFSET)) * tokens_per_window - max_num_tokens / 2
    )
    return min(max(start, 0), max(num_tokens - max_num_tokens, 0))


def sentence_at_token(part: DocumentPart, offset: int) -> int:
    """Returns the index of the sentence that contains token `offset` of a part."""
    return int(part.sentence_ends.searchsorted(offset, side="right"))


def take_sentences_from_offset(
    part: DocumentPart, offset: int, target_seq_length: int, later_parts: Iterator[DocumentPart]
) -> TextWindow:
    """Takes sentences from the first one that starts at token `offset` or later.

    If no sentence of the document starts there, takes its last one. (Starting with the sentence
    that contains the offset would prefer long sentences as the beginning of segment A.)
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
    """Takes whole sentences until they have `target_seq_length` tokens or the document ends.

    Args:
      part: the part in which the window begins.
      first_sentence: index of the window's first sentence in that part.
      target_seq_length: the window ends with the sentence that reaches this number of tokens.
      later_parts: the following parts of the document. Those that the window extends into are
        consumed; the others are not read.

    Returns:
      ids with the dtype of the corpus (uint16 or uint32) and sentence_ends uint32.
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


def take_sentences_that_fit(
    part: DocumentPart,
    offset: int,
    max_num_tokens: int,
    later_parts: Iterator[DocumentPart],
    sep_id: int,
) -> np.ndarray:
    """Takes as many whole sentences as fit (RoBERTa's FULL-SENTENCES and DOC-SENTENCES).

    Args:
      part: the part in which the text begins, with the sentence that contains token `offset`.
      max_num_tokens: the largest number of tokens to return, separators included. A first sentence
        that is longer is cut: its tokens from `offset` on, or its last `max_num_tokens`.
      later_parts: the parts that may follow. A separator is put before the first part of a
        document.

    Returns:
      ids [T], 1 <= T <= max_num_tokens.
    """
    ends, first_sentence = part.sentence_ends, sentence_at_token(part, offset)
    begin = int(ends[first_sentence - 1]) if first_sentence else 0
    if (sentence_end := int(ends[first_sentence])) - begin > max_num_tokens:
        begin = min(offset, sentence_end - max_num_tokens)
        return part.ids[begin : begin + max_num_tokens]
    separator = np.array([sep_id], part.ids.dtype)
    chunks: list[np.ndarray] = []
    free_tokens = max_num_tokens
    while True:
        stop_sentence = int(ends.searchsorted(begin + free_tokens, side="right"))
        end = int(ends[stop_sentence - 1])
        chunks.append(part.ids[begin:end])
        free_tokens -= end - begin
        next_part = next(later_parts, None) if stop_sentence == len(ends) else None
        if next_part is None:
            break
        part, ends, begin = next_part, next_part.sentence_ends, 0
        num_separators = int(part.part == 0)
        free_tokens -= num_separators
        if ends[0] > free_tokens:
            break
        chunks.append(separator[:num_separators])
    return np.concatenate(chunks)
