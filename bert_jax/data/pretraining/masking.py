"""Selects the positions that masked LM predicts, and replaces their tokens.

As in BERT (Devlin et al. 2019, section 3.1), 15 % of the tokens that are not special are selected;
80 % of these become [MASK], 10 % a random token, and 10 % remain. Whole-word masking selects all
tokens of a word or none, as create_pretraining_data.py does with `do_whole_word_mask`.

RoBERTa's inputs are masked by the same rules, as Hugging Face's `DataCollatorForLanguageModeling`
does. fairseq's `mask_tokens_dataset.py` differs: it also selects <s> and </s>, rounds the number of
predictions up or down at random, and draws replacements that may be <mask>. See
docs/ARCHITECTURE.md for the reason.
"""

import numpy as np

from bert_jax.data.config import Masking
from bert_jax.data.pretraining.rng import Stream, random_bits
from bert_jax.data.pretraining.vocab_arrays import VocabArrays

_POSITION_BITS = np.uint64(0xFFFF)
_MAX_UINT64 = np.uint64(0xFFFFFFFFFFFFFFFF)


def mask_tokens(
    input_ids: np.ndarray,
    attention_mask: np.ndarray,
    keys: np.ndarray,
    config: Masking,
    max_predictions_per_seq: int,
    vocab_arrays: VocabArrays,
    position_ids: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Masks the tokens of a batch.

    A row with n tokens that are neither special nor padding gets max(1, round(n * mlm_probability))
    predictions, at most `max_predictions_per_seq`. With whole-word masking, words are taken in
    random order as long as they fit, so that there may be fewer predictions, or none if every word
    is longer than that number.

    Args:
      input_ids, attention_mask: [B, L] int32, L <= 65,536.
      keys: uint64 random keys of the examples: [B], or [B, L] (one for each token) if rows are
        packed.
      config, max_predictions_per_seq, vocab_arrays: the settings, P, and the special tokens.
      position_ids: [B, L] positions within the example if rows are packed; else 0 to L - 1.

    Returns:
      `input_ids` [B, L] int32 with the selected positions masked, `masked_lm_positions` and
      `masked_lm_ids` [B, P] int32, `masked_lm_weights` [B, P] float32. Positions are in ascending
      order; unused entries are 0.
    """
    positions = np.arange(input_ids.shape[1])[None, :] if position_ids is None else position_ids
    is_maskable = (attention_mask != 0) & ~vocab_arrays.is_special[input_ids]
    word_starts = (
        _word_starts(input_ids, is_maskable, vocab_arrays)
        if config.whole_word_mask
        else is_maskable
    )
    keys_2d = keys[:, None] if keys.ndim == 1 else keys
    ranks = random_bits(keys_2d, Stream.MASK_SELECTION, positions)
    num_predictions = (
        np.rint(is_maskable.sum(axis=1) * config.mlm_probability)
        .astype(np.int64)
        .clip(1, max_predictions_per_seq)
    )
    is_selected = _select_words(ranks, word_starts, is_maskable, num_predictions)
    return _replace_tokens(
        input_ids, is_selected, keys_2d, positions, config, max_predictions_per_seq, vocab_arrays
    )


def _word_starts(
    input_ids: np.ndarray, is_maskable: np.ndarray, vocab_arrays: VocabArrays
) -> np.ndarray:
    """Returns [B, L] bool: maskable tokens that begin a word or follow one not maskable."""
    word_starts = vocab_arrays.word_starts[input_ids]
    word_starts[:, 0] = True
    word_starts[:, 1:] |= ~is_maskable[:, :-1]
    return word_starts & is_maskable


def _select_words(
    ranks: np.ndarray, word_starts: np.ndarray, is_maskable: np.ndarray, num_predictions: np.ndarray
) -> np.ndarray:
    """Takes words in the order of their ranks as long as they fit into the predictions [B].

    Returns:
      [B, L] bool, True at the tokens of the selected words.
    """
    length = word_starts.shape[1]
    positions = np.arange(length)
    # The low bits contain the first position of the word, so that one sort orders the words.
    sort_keys = (ranks & ~_POSITION_BITS) | positions.astype(np.uint64)
    sort_keys[~word_starts] = _MAX_UINT64
    sort_keys.sort(axis=1)
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
    is_word = sort_keys != _MAX_UINT64
    word_positions = np.where(is_word, sort_keys & _POSITION_BITS, 0).astype(np.int64)
    taken = _fill_greedily(
        np.where(is_word, np.take_along_axis(sizes, word_positions, axis=1), 0), num_predictions
    )
    is_taken_start = np.zeros(word_starts.shape, dtype=bool)
    row, rank = np.nonzero(taken)
    is_taken_start[row, word_positions[row, rank]] = True
    return np.take_along_axis(is_taken_start, first_positions, axis=1) & is_maskable


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


def _replace_tokens(
    input_ids: np.ndarray,
    is_selected: np.ndarray,
    keys: np.ndarray,
    position_ids: np.ndarray,
    config: Masking,
    max_predictions_per_seq: int,
    vocab_arrays: VocabArrays,
) -> dict[str, np.ndarray]:
    """Replaces the tokens at the selected positions and lists positions and original ids."""
    num_sequences = len(input_ids)
    row, column = np.nonzero(is_selected)
    num_selected = np.bincount(row, minlength=num_sequences)
    prediction_index = np.arange(len(row)) - np.repeat(
        np.cumsum(num_selected) - num_selected, num_selected
    )
    original = input_ids[row, column]

    token_keys = np.broadcast_to(keys, is_selected.shape)[row, column]
    index = np.broadcast_to(position_ids, is_selected.shape)[row, column]
    action = (random_bits(token_keys, Stream.MASK_ACTION, index) >> np.uint64(11)) * 2.0**-53
    random_choice = random_bits(token_keys, Stream.RANDOM_TOKEN, index) >> np.uint64(32)
    random_choice = (random_choice * np.uint64(len(vocab_arrays.maskable_ids))) >> np.uint64(32)
    unmasked_ids = np.where(
        action < config.mask_replace_prob + config.random_replace_prob,
        vocab_arrays.maskable_ids[random_choice],
        original,
    )
    masked = input_ids.copy()
    masked[row, column] = np.where(
        action < config.mask_replace_prob, vocab_arrays.mask_id, unmasked_ids
    )

    shape = (num_sequences, max_predictions_per_seq)
    positions, ids = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)
    weights = np.zeros(shape, dtype=np.float32)
    positions[row, prediction_index] = column
    ids[row, prediction_index] = original
    weights[row, prediction_index] = 1.0
    return {
        "input_ids": masked,
        "masked_lm_positions": positions,
        "masked_lm_ids": ids,
        "masked_lm_weights": weights,
    }
