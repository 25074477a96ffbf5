"""Masked-LM selection: which positions are predicted, and what the model sees there.

BERT (Devlin et al., 2019, 3.1): 15 % of the ordinary positions are selected; of these 80 % become
[MASK], 10 % a random ordinary id, 10 % stay. Whole-word masking selects all pieces of a word or
none, as in BERT's create_pretraining_data.py with `do_whole_word_mask`.
"""

import numpy as np

from bert_jax.data.config import Masking
from bert_jax.data.random import Stream, words
from bert_jax.data.token_table import TokenTable

_POSITION_BITS = np.uint64(0xFFFF)
_LAST = np.uint64(0xFFFFFFFFFFFFFFFF)


def mask_rows(
    input_ids: np.ndarray,
    attention_mask: np.ndarray,
    keys: np.ndarray,
    config: Masking,
    max_predictions: int,
    table: TokenTable,
    position_ids: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Masks rows of tokens.

    A row of n ordinary (not special, not padding) tokens gets max(1, round(n * rate)) predictions,
    at most `max_predictions`. With whole words, words are taken in random order as long as they
    fit, so there may be fewer; none where every word is larger than that number.

    Args:
      input_ids, attention_mask: [B, L] int32, L <= 65,536.
      keys: uint64 keys of the examples, [B] one for each row, or [B, L] one for each token of
        packed rows.
      position_ids: [B, L] positions within the example, for packed rows; else 0 to L - 1.

    Returns:
      `input_ids` [B, L] int32 with the selected positions masked, `masked_lm_positions` and
      `masked_lm_ids` [B, P] int32, `masked_lm_weights` [B, P] float32; P is `max_predictions`.
      Positions ascend; unused places hold 0.
    """
    at = np.arange(input_ids.shape[1])[None, :] if position_ids is None else position_ids
    ordinary = (attention_mask != 0) & ~table.special[input_ids]
    starts = _word_starts(input_ids, ordinary, table) if config.whole_word else ordinary
    keys_2d = keys[:, None] if keys.ndim == 1 else keys
    ranks = words(keys_2d, Stream.SELECT, at)
    wanted = np.rint(ordinary.sum(axis=1) * config.rate).astype(np.int64).clip(1, max_predictions)
    chosen = _choose_words(ranks, starts, ordinary, wanted)
    return _replace(input_ids, chosen, keys_2d, at, config, max_predictions, table)


def _word_starts(input_ids: np.ndarray, ordinary: np.ndarray, table: TokenTable) -> np.ndarray:
    """[B, L] bool: an ordinary piece that begins a word, or follows one that is not ordinary."""
    starts = table.word_starts[input_ids]
    starts[:, 0] = True
    starts[:, 1:] |= ~ordinary[:, :-1]
    return starts & ordinary


def _choose_words(
    ranks: np.ndarray, starts: np.ndarray, ordinary: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """Takes words in the order of their ranks as long as they fit into `wanted` [B] positions.

    Returns:
      [B, L] bool, the positions of the words taken.
    """
    length = starts.shape[1]
    positions = np.arange(length)
    # The word's first position rides in the low bits, so sorting the values sorts the words.
    order = (ranks & ~_POSITION_BITS) | positions.astype(np.uint64)
    order[~starts] = _LAST
    order.sort(axis=1)
    # Only so many words can be taken where each is one position; else any may be the one that fits.
    single = int(starts.sum()) == int(ordinary.sum())
    order = order[:, : wanted.max() if single else starts.sum(axis=1).max()]
    first = np.maximum.accumulate(np.where(starts, positions, 0), axis=1)
    flat_first = first + np.arange(len(starts))[:, None] * length
    sizes = np.bincount(flat_first[ordinary], minlength=starts.size).reshape(starts.shape)
    real = order != _LAST
    at = np.where(real, order & _POSITION_BITS, 0).astype(np.int64)
    taken = _fill(np.where(real, np.take_along_axis(sizes, at, axis=1), 0), wanted)
    flags = np.zeros(starts.shape, dtype=bool)
    row, rank = np.nonzero(taken)
    flags[row, at[row, rank]] = True
    return np.take_along_axis(flags, first, axis=1) & ordinary


def _fill(sizes: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Greedy filling: goes through sizes [B, W] in order, taking each that still fits in room [B].

    Sizes of 0 are no words. Each turn takes all words up to the first that does not fit; that one
    is larger than the room which is left, so the turns end soon.

    Returns:
      [B, W] bool, the words taken.
    """
    taken = np.zeros(sizes.shape, dtype=bool)
    open_rows, room = np.arange(len(sizes)), room.copy()
    left = sizes
    while len(open_rows):
        left = np.where(left <= room[open_rows, None], left, 0)
        fits = np.cumsum(left, axis=1) <= room[open_rows, None]
        now = fits & (left > 0)
        taken[open_rows] |= now
        room[open_rows] -= np.where(now, left, 0).sum(axis=1)
        left = np.where(now, 0, left)
        again = (room[open_rows] > 0) & left.any(axis=1)
        open_rows, left = open_rows[again], left[again]
    return taken


def _replace(
    input_ids: np.ndarray,
    chosen: np.ndarray,
    keys: np.ndarray,
    position_ids: np.ndarray,
    config: Masking,
    max_predictions: int,
    table: TokenTable,
) -> dict[str, np.ndarray]:
    """Writes [MASK], random or the same ids at the chosen positions and lists these."""
    rows = len(input_ids)
    row, column = np.nonzero(chosen)
    per_row = np.bincount(row, minlength=rows)
    place = np.arange(len(row)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    original = input_ids[row, column]

    token_keys = np.broadcast_to(keys, chosen.shape)[row, column]
    index = np.broadcast_to(position_ids, chosen.shape)[row, column]
    action = (words(token_keys, Stream.ACTION, index) >> np.uint64(11)) * 2.0**-53
    pick = words(token_keys, Stream.REPLACEMENT, index) >> np.uint64(32)
    pick = (pick * np.uint64(len(table.ordinary))) >> np.uint64(32)
    seen = np.where(
        action < config.mask_share + config.random_share, table.ordinary[pick], original
    )
    masked = input_ids.copy()
    masked[row, column] = np.where(action < config.mask_share, table.mask_id, seen)

    shape = (rows, max_predictions)
    positions, ids = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)
    weights = np.zeros(shape, dtype=np.float32)
    positions[row, place] = column
    ids[row, place] = original
    weights[row, place] = 1.0
    return {
        "input_ids": masked,
        "masked_lm_positions": positions,
        "masked_lm_ids": ids,
        "masked_lm_weights": weights,
    }
