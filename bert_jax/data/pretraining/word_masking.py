"""Selects the tokens or words that masked LM predicts, in random order (BERT, section 3.1).

Whole-word masking selects all tokens of a word or none, as create_pretraining_data.py does with
`do_whole_word_mask`. Special tokens are never selected, and a word ends before a special token.
"""

import numpy as np

from bert_jax.data.pretraining.vocab_arrays import VocabArrays

_POSITION_BITS = np.uint64(0xFFFF)
_MAX_UINT64 = np.uint64(0xFFFFFFFFFFFFFFFF)


def find_word_starts(
    input_ids: np.ndarray, is_maskable: np.ndarray, vocab_arrays: VocabArrays
) -> np.ndarray:
    """Returns [B, L] bool: maskable tokens that begin a word or follow one not maskable."""
    word_starts = vocab_arrays.word_starts[input_ids]
    word_starts[:, 0] = True
    word_starts[:, 1:] |= ~is_maskable[:, :-1]
    return word_starts & is_maskable


def select_words(
    ranks: np.ndarray, word_starts: np.ndarray, is_maskable: np.ndarray, num_predictions: np.ndarray
) -> np.ndarray:
    """Takes words in the order of their ranks as long as they fit into the predictions [B].

    Returns:
      [B, L] bool, True at the tokens of the selected words.
    """
    length = word_starts.shape[1]
    positions = np.arange(length)
    sort_keys = _sort_by_rank(ranks, word_starts)
    # If each word is one token, no more than num_predictions words are needed; else any may fit.
    only_single_token_words = int(word_starts.sum()) == int(is_maskable.sum())
    sort_keys = sort_keys[
        :, : num_predictions.max() if only_single_token_words else word_starts.sum(axis=1).max()
    ]
    first_positions = np.maximum.accumulate(np.where(word_starts, positions, 0), axis=1)
    flat_first_positions = first_positions + np.arange(len(word_starts))[:, None] * length
    sizes = np.bincount(flat_first_positions[is_maskable], minlength=word_starts.size).reshape(
        word_starts.shape
    )
    is_word, word_positions = _positions_of(sort_keys)
    taken = _fill_greedily(
        np.where(is_word, np.take_along_axis(sizes, word_positions, axis=1), 0), num_predictions
    )
    is_taken_start = np.zeros(word_starts.shape, dtype=bool)
    row, rank = np.nonzero(taken)
    is_taken_start[row, word_positions[row, rank]] = True
    return np.take_along_axis(is_taken_start, first_positions, axis=1) & is_maskable


def shuffle_positions(ranks: np.ndarray, is_candidate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorts the positions of the candidates of each row by their random numbers.

    Args:
      ranks: [B, L] uint64 random numbers.
      is_candidate: [B, L] bool.

    Returns:
      positions [B, K] int64, where K is the largest number of candidates in a row, and the number
      of candidates [B] of each row.
    """
    num_candidates = is_candidate.sum(axis=1)
    sort_keys = _sort_by_rank(ranks, is_candidate)[:, : num_candidates.max(initial=0)]
    return _positions_of(sort_keys)[1], num_candidates


def _sort_by_rank(ranks: np.ndarray, is_candidate: np.ndarray) -> np.ndarray:
    """Returns the sorted ranks, [B, L] uint64, whose low 16 bits are replaced by the position.

    One sort therefore orders the positions. Entries that are no candidates are the largest number
    and come last.
    """
    positions = np.arange(ranks.shape[1]).astype(np.uint64)
    sort_keys = (ranks & ~_POSITION_BITS) | positions
    sort_keys[~is_candidate] = _MAX_UINT64
    sort_keys.sort(axis=1)
    return sort_keys


def _positions_of(sort_keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns whether sort keys are those of candidates, and their positions or 0, int64."""
    is_candidate = sort_keys != _MAX_UINT64
    return is_candidate, np.where(is_candidate, sort_keys & _POSITION_BITS, 0).astype(np.int64)


def _fill_greedily(sizes: np.ndarray, budgets: np.ndarray) -> np.ndarray:
    """Takes words of sizes [B, W] in order if they still fit into budgets [B].

    A size of 0 means no word. Each iteration takes all words up to the first that does not fit.
    That word is larger than the remaining budget, so that few iterations are needed.

    Returns:
      [B, W] bool, True for the words taken.
    """
    taken = np.zeros(sizes.shape, dtype=bool)
    open_rows, budgets = np.arange(len(sizes)), budgets.copy()
    remaining_sizes = sizes
    while len(open_rows):
        remaining_sizes = np.where(remaining_sizes <= budgets[open_rows, None], remaining_sizes, 0)
        fits = np.cumsum(remaining_sizes, axis=1) <= budgets[open_rows, None]
        newly_taken = fits & (remaining_sizes > 0)
        taken[open_rows] |= newly_taken
        budgets[open_rows] -= np.where(newly_taken, remaining_sizes, 0).sum(axis=1)
        remaining_sizes = np.where(newly_taken, 0, remaining_sizes)
        unfinished = (budgets[open_rows] > 0) & remaining_sizes.any(axis=1)
        open_rows, remaining_sizes = open_rows[unfinished], remaining_sizes[unfinished]
    return taken
