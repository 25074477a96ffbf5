"""Selects the positions that masked LM predicts, and replaces their tokens.

As in BERT (Devlin et al. 2019, section 3.1), 15 % of the tokens that are not special are selected;
80 % of these become [MASK], 10 % a random token, and 10 % remain. What is selected depends on the
config: tokens or whole words (`word_masking.py`), n-grams of words (`ngram_masking.py`), or spans
of words (`span_masking.py`).

RoBERTa's inputs are masked by the same rules, as Hugging Face's `DataCollatorForLanguageModeling`
does. fairseq's `mask_tokens_dataset.py` differs: it also selects <s> and </s>, rounds the number of
predictions up or down at random, and draws replacements that may be <mask>. See
docs/ARCHITECTURE.md for the reason.
"""

from typing import NamedTuple

import numpy as np

from bert_jax.data.config import Masking, MaskingConfig, NGramMasking, SpanMasking
from bert_jax.data.pretraining.ngram_masking import select_ngrams
from bert_jax.data.pretraining.rng import Stream, random_bits
from bert_jax.data.pretraining.span_masking import (
    find_span_edges,
    geometric_probabilities,
    select_spans,
    span_boundary_fields,
)
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.data.pretraining.word_masking import find_word_starts, select_words


def mask_tokens(
    input_ids: np.ndarray,
    attention_mask: np.ndarray,
    keys: np.ndarray,
    config: MaskingConfig,
    max_predictions_per_seq: int,
    vocab_arrays: VocabArrays,
    position_ids: np.ndarray | None = None,
    replacement_ids: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Masks the tokens of a batch.

    The number of predictions of a row is at most `max_predictions_per_seq`, and otherwise

    - with `Masking`, max(1, round(n * mlm_probability)) for n tokens that are neither special nor
      padding. With whole-word masking, words are taken in random order as long as they fit, so that
      there may be fewer predictions, or none if every word is longer than that number;
    - with `NGramMasking` the same, where n includes the special tokens;
    - with `SpanMasking`, n * mlm_probability rounded up, without the special tokens.

    Args:
      input_ids, attention_mask: [B, L] int32, L <= 65,536.
      keys: uint64 random keys of the examples: [B], or [B, L] (one for each token) if rows are
        packed.
      config, max_predictions_per_seq, vocab_arrays: the settings, P, and the special tokens.
      position_ids: [B, L] positions within the example if rows are packed; else 0 to L - 1.
      replacement_ids: ids from which random tokens are drawn, each entry with equal probability;
        None: all ids that are not special.

    Returns:
      `input_ids` [B, L] int32 with the selected positions masked, `masked_lm_positions` and
      `masked_lm_ids` [B, P] int32, `masked_lm_weights` [B, P] float32, `sampling_seeds` [B, P]
      int32. Positions are in ascending order; unused entries are 0. With `SpanMasking` also the
      fields `SPAN_BOUNDARY_FIELDS`.
    """
    positions = np.arange(input_ids.shape[1])[None, :] if position_ids is None else position_ids
    is_maskable = (attention_mask != 0) & ~vocab_arrays.is_special[input_ids]
    keys_2d = keys[:, None] if keys.ndim == 1 else keys
    shape = (len(input_ids), max_predictions_per_seq)
    is_selected = _select(
        input_ids, attention_mask, is_maskable, keys_2d, positions, config, shape[1], vocab_arrays
    )
    selection = _Selection.of(is_selected, draw_once_per_span=isinstance(config, SpanMasking))
    fields = _masked_lm_fields(input_ids, selection, keys_2d, positions, shape)
    fields["input_ids"] = _replace_tokens(
        input_ids,
        selection,
        np.broadcast_to(keys_2d, input_ids.shape),
        np.broadcast_to(positions, input_ids.shape),
        config,
        vocab_arrays.mask_id,
        vocab_arrays.maskable_ids if replacement_ids is None else replacement_ids,
    )
    if isinstance(config, SpanMasking):
        fields |= span_boundary_fields(
            is_selected, is_maskable, selection.prediction_indices, shape
        )
    return fields


def _select(
    input_ids: np.ndarray,
    attention_mask: np.ndarray,
    is_maskable: np.ndarray,
    keys: np.ndarray,
    position_ids: np.ndarray,
    config: MaskingConfig,
    max_predictions_per_seq: int,
    vocab_arrays: VocabArrays,
) -> np.ndarray:
    """Returns [B, L] bool, True at the positions to predict; `mask_tokens` says how many."""
    num_maskable = is_maskable.sum(axis=1)
    by_word = not isinstance(config, Masking) or config.whole_word_mask
    word_starts = find_word_starts(input_ids, is_maskable, vocab_arrays) if by_word else is_maskable
    match config:
        case Masking():
            ranks = random_bits(keys, Stream.MASK_SELECTION, position_ids)
            num_predictions = (
                np.rint(num_maskable * config.mlm_probability)
                .astype(np.int64)
                .clip(1, max_predictions_per_seq)
            )
            return select_words(ranks, word_starts, is_maskable, num_predictions)
        case NGramMasking():
            num_tokens = (attention_mask != 0).sum(axis=1)
            num_predictions = np.rint(num_tokens * config.mlm_probability)
            return select_ngrams(
                keys,
                position_ids,
                word_starts,
                is_maskable,
                num_predictions.clip(1, max_predictions_per_seq),
                config.max_ngram,
            )
        case SpanMasking():
            num_predictions = np.ceil(num_maskable * config.mlm_probability)
            return select_spans(
                keys,
                position_ids,
                word_starts,
                is_maskable,
                num_predictions.clip(0, max_predictions_per_seq),
                geometric_probabilities(config.max_span_length, config.geometric_p),
            )


class _Selection(NamedTuple):
    """Holds the selected tokens of all rows, each array [number of selected tokens].

    Attributes:
      rows, columns: the position of the token.
      prediction_indices: the entry of the token among its row's predictions.
      draw_columns: the column whose random number decides between [MASK], a random token and the
        original: that of the token, or that of the first token of its span.
    """

    rows: np.ndarray
    columns: np.ndarray
    prediction_indices: np.ndarray
    draw_columns: np.ndarray

    @classmethod
    def of(cls, is_selected: np.ndarray, *, draw_once_per_span: bool) -> "_Selection":
        rows, columns = np.nonzero(is_selected)
        num_selected = np.bincount(rows, minlength=len(is_selected))
        first_entries = np.repeat(np.cumsum(num_selected) - num_selected, num_selected)
        draw_columns = columns
        if draw_once_per_span:
            draw_columns = find_span_edges(is_selected)[0][rows, columns]
        return cls(rows, columns, np.arange(len(rows)) - first_entries, draw_columns)


def _masked_lm_fields(
    input_ids: np.ndarray,
    selection: _Selection,
    keys: np.ndarray,
    position_ids: np.ndarray,
    shape: tuple[int, int],
) -> dict[str, np.ndarray]:
    """Lists positions, original ids, weights and sampling seeds of the predictions, [B, P] each."""
    positions, ids, seeds = (np.zeros(shape, dtype=np.int32) for _ in range(3))
    weights = np.zeros(shape, dtype=np.float32)
    keys, position_ids = (np.broadcast_to(x, input_ids.shape) for x in (keys, position_ids))
    bits = random_bits(
        keys[selection.rows, selection.columns],
        Stream.SAMPLING_SEED,
        position_ids[selection.rows, selection.columns],
    )
    entries = selection.rows, selection.prediction_indices
    positions[entries] = selection.columns
    ids[entries] = input_ids[selection.rows, selection.columns]
    weights[entries] = 1.0
    seeds[entries] = (bits >> np.uint64(32)).astype(np.uint32).view(np.int32)
    return {
        "masked_lm_positions": positions,
        "masked_lm_ids": ids,
        "masked_lm_weights": weights,
        "sampling_seeds": seeds,
    }


def _replace_tokens(
    input_ids: np.ndarray,
    selection: _Selection,
    keys: np.ndarray,
    position_ids: np.ndarray,
    config: MaskingConfig,
    mask_id: int,
    replacement_ids: np.ndarray,
) -> np.ndarray:
    """Returns `input_ids` with the selected tokens replaced; keys and position_ids are [B, L]."""
    rows, columns, _, draw_columns = selection
    original = input_ids[rows, columns]
    action_bits = random_bits(
        keys[rows, draw_columns], Stream.MASK_ACTION, position_ids[rows, draw_columns]
    )
    action = (action_bits >> np.uint64(11)) * 2.0**-53
    random_choice = random_bits(
        keys[rows, columns], Stream.RANDOM_TOKEN, position_ids[rows, columns]
    ) >> np.uint64(32)
    random_choice = (random_choice * np.uint64(len(replacement_ids))) >> np.uint64(32)
    unmasked_ids = np.where(
        action < config.mask_replace_prob + config.random_replace_prob,
        replacement_ids[random_choice],
        original,
    )
    masked = input_ids.copy()
    masked[rows, columns] = np.where(action < config.mask_replace_prob, mask_id, unmasked_ids)
    return masked
