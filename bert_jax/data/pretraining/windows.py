"""Cuts documents into windows of whole sentences, and packs short examples into one sequence.

The lengths alone decide which examples are in a batch: examples are taken in order, as many as fit
by first-fit decreasing, and none is skipped. The state of a packed stream is therefore one number:
how many examples have been consumed.

BERT's create_pretraining_data.py goes through each document once and cuts it into chunks. Here a
document of T tokens has n = round(T / max_num_tokens) windows at equal distances, which all move by
the same random phase in every epoch. An example can therefore be made from its index alone. As in
BERT, windows lie side by side, up to the rounding of n: if the document has more tokens than n
windows, the others, fewer than half a window, are not read in this epoch, and in another epoch
others are; if it has fewer, windows overlap. In long documents the first and the last half window
are read in between 0.5 and 1.5 examples of an epoch on average, because starts before the document
are clipped to its beginning. `bench/coverage.py` measures how much of a corpus an epoch reads.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.corpus.shards import DocumentPart
from bert_jax.data.pretraining.rng import ExampleRng, Stream
from bert_jax.data.pretraining.vocab_arrays import VocabArrays


class PackingPlan(NamedTuple):
    """Holds where the first n examples go, int64.

    Attributes:
      rows: [n].
      offsets: [n, S], of the first token in each of the S sequences of the row.
    """

    rows: np.ndarray
    offsets: np.ndarray


def pack(lengths: np.ndarray, num_rows: int, capacities: tuple[int, ...]) -> PackingPlan:
    """Packs as many of the first examples as fit into `num_rows` rows.

    A row is one sequence, or a source and a target, each with a capacity of its own. The example
    that takes the largest fraction of a capacity is placed first; each goes to the first row with
    enough space for all its sequences. If k examples find no row, the last k examples in order are
    left out, whichever did not fit, and the others are packed again.

    Args:
      lengths: [m, S] tokens of each of the S sequences of the next m examples, special tokens
        included; each at most its capacity.
      capacities: the tokens of each of the S sequences of a row.
    """
    totals = np.cumsum(lengths, axis=0)
    # No more examples can fit than their total length allows, so the search begins there.
    num_examples = int(np.all(totals <= num_rows * np.array(capacities), axis=1).sum())
    while True:
        assigned_rows, offsets = _first_fit_decreasing(lengths[:num_examples], num_rows, capacities)
        num_unplaced = int((assigned_rows < 0).sum())
        if not num_unplaced:
            return PackingPlan(assigned_rows, offsets)
        num_examples -= num_unplaced


def _first_fit_decreasing(
    lengths: np.ndarray, num_rows: int, capacities: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row of each example, [m], -1 if none has space, and its offsets, [m, S]."""
    free_tokens = np.tile(np.array(capacities, np.int64), (num_rows, 1))
    assigned_rows = np.full(len(lengths), -1, dtype=np.int64)
    offsets = np.zeros(lengths.shape, dtype=np.int64)
    largest_fraction = (lengths / np.array(capacities)).max(axis=1)
    # Stable, so that all processes place examples of equal length in the same rows.
    for example in np.argsort(-largest_fraction, kind="stable").tolist():
        num_tokens = lengths[example]
        has_space = np.all(free_tokens >= num_tokens, axis=1)
        row = int(has_space.argmax())
        if has_space[row]:
            assigned_rows[example], offsets[example] = row, capacities - free_tokens[row]
            free_tokens[row] -= num_tokens
    return assigned_rows, offsets


def collate_packed_segments(
    texts: Sequence[np.ndarray],
    keys: np.ndarray,
    packing_plan: PackingPlan,
    shape: tuple[int, int],
    vocab_arrays: VocabArrays,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Builds sequences of several packed examples [CLS] text [SEP], not yet masked.

    Args:
      texts: ids [T] of each example.
      keys: [n] uint64, the random keys of the examples.
      packing_plan: where each example goes.
      shape: (B, L).

    Returns:
      `input_ids`, `token_type_ids`, `attention_mask`, `position_ids` (from 0 in each example) and
      `packing_ids` (1, 2, ... along a row, 0 = padding), [B, L] int32; and the random key of the
      example of each token, [B, L] uint64, for `mask_tokens`.
    """
    input_ids = np.full(shape, vocab_arrays.pad_id, dtype=np.int32)
    position_ids, packing_ids = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    token_keys = np.zeros(shape, np.uint64)
    num_packed = np.zeros(shape[0], dtype=np.int32)
    offsets = packing_plan.offsets[:, 0]
    # From left to right, so that `packing_ids` grow along a row.
    for example in np.argsort(offsets, kind="stable").tolist():
        text, row, begin = texts[example], packing_plan.rows[example], offsets[example]
        length = vocab_arrays.template.write_inputs(
            input_ids[row, begin:], vocab_arrays.cls_id, vocab_arrays.sep_id, text
        )
        end = begin + length
        num_packed[row] += 1
        position_ids[row, begin:end] = np.arange(length)
        packing_ids[row, begin:end] = num_packed[row]
        # Masks depend on the key of the example and the position in it, not on the row, so an
        # example has the same masks wherever it is packed.
        token_keys[row, begin:end] = keys[example]
    fields = {
        "input_ids": input_ids,
        "token_type_ids": np.zeros(shape, dtype=np.int32),
        "attention_mask": (packing_ids > 0).astype(np.int32),
        "position_ids": position_ids,
        "packing_ids": packing_ids,
    }
    return fields, token_keys


class TextWindow(NamedTuple):
    """Holds consecutive whole sentences: ids [T], and sentence_ends [S] relative to the window."""

    ids: np.ndarray
    sentence_ends: np.ndarray


def windows_per_document(
    tokens_per_document: np.ndarray, max_num_tokens: int | np.ndarray
) -> np.ndarray:
    """Returns the number of windows [D] int64 of each document; it is at least one.

    Args:
      tokens_per_document: [D].
      max_num_tokens: the tokens of a window, for all documents or for each, [D].
    """
    # Rounded and not cut: a document of 1.6 windows is read twice, so that its tokens are seen once
    # per epoch on average.
    return np.maximum(1, np.rint(np.asarray(tokens_per_document) / max_num_tokens).astype(np.int64))


def window_phase(epoch_key: int, document_index: int) -> float:
    """Draws the phase of the windows of a document in an epoch, uniform in [0, 1)."""
    return ExampleRng(epoch_key).uniform(Stream.WINDOW_OFFSET, document_index)


# A document shorter than this many windows moves its windows by less than a window.
_MIN_WINDOWS_FOR_ANY_PHASE = 16


def window_offset(
    num_tokens: int, window_index: int, num_windows: int, max_num_tokens: int, phase: float
) -> int:
    """Returns the token at which a window begins, before the start moves to a sentence boundary.

    The windows of a document are num_tokens / num_windows tokens apart, centered in the document,
    and moved together by up to half a window to either side: phase 0 moves them to the left, and 1
    to the right. A start is then clipped to [0, num_tokens - max_num_tokens], so that only short
    documents give short windows.

    A phase costs up to half a window at an end of the document, which is then not read. In short
    documents windows therefore move by less: by what gives all tokens a chance to be read if the
    windows are too few for the document, and by a sixteenth of the document.
    """
    distance = num_tokens / num_windows
    unread = abs(distance - max_num_tokens)
    movement = min(max_num_tokens, num_tokens / _MIN_WINDOWS_FOR_ANY_PHASE + 2 * unread)
    first = (distance - max_num_tokens) / 2 + (phase - 0.5) * movement
    start = int(first + window_index * distance)
    return min(max(start, 0), max(num_tokens - max_num_tokens, 0))


def sentence_at_token(part: DocumentPart, offset: int) -> int:
    """Returns the index of the sentence that contains token `offset` of a part."""
    return int(part.sentence_ends.searchsorted(offset, side="right"))


def take_tokens(
    part: DocumentPart, offset: int, num_tokens: int, later_parts: Iterator[DocumentPart]
) -> np.ndarray:
    """Takes `num_tokens` tokens from token `offset` of a part on, or as many as follow."""
    chunks = [part.ids[offset : offset + num_tokens]]
    num_missing = num_tokens - len(chunks[0])
    while num_missing and (later := next(later_parts, None)) is not None:
        chunks.append(later.ids[:num_missing])
        num_missing -= len(chunks[-1])
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


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
        # Near its end, a sentence that is too long is read from earlier on, so that the input is
        # full.
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
        # Only a new document gets a separator; a long document goes on in its next part.
        num_separators = int(part.part == 0)
        free_tokens -= num_separators
        if ends[0] > free_tokens:
            break
        chunks.append(separator[:num_separators])
    return np.concatenate(chunks)
