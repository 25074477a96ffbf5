"""Selects spans of consecutive words for masked LM and the span boundary objective (SpanBERT).

Source: Joshi et al. 2020, sections 3.1 and 3.2, and `PairWithSpanMaskingScheme` of the authors'
`fairseq/data/masking.py`. A span begins at the word of a random token that is not selected yet, and
continues for a random number of words. Tokens are selected from left to right until 15 % of the row
are, so that the last word may be cut. Spans that touch or overlap are one span from then on.

Differences from the original code:

- A span ends before a special token, for rows of several documents or packed examples. The
  original rows are one text without special tokens.
- Random tokens are drawn from a sample of the corpus (`dataset.py`), not from all of it.
"""

import numpy as np

from bert_jax.batch import MAX_SPAN_TARGETS
from bert_jax.data.pretraining.ngram_masking import Words, sample_lengths
from bert_jax.data.pretraining.rng import Stream, random_bits
from bert_jax.data.pretraining.word_masking import shuffle_positions


def select_spans(
    keys: np.ndarray,
    position_ids: np.ndarray,
    word_starts: np.ndarray,
    is_maskable: np.ndarray,
    num_predictions: np.ndarray,
    span_probabilities: np.ndarray,
) -> np.ndarray:
    """Selects spans with exactly `num_predictions` tokens together in each row.

    Args:
      keys: uint64 random keys, [B, 1] or [B, L].
      position_ids: positions within the example, [1, L] or [B, L].
      word_starts, is_maskable: [B, L] bool; the words end before tokens that are not maskable.
      num_predictions: [B], at most the number of maskable tokens of each row.
      span_probabilities: [N], the probabilities of spans of 1 to N words.

    Returns:
      [B, L] bool, True at the selected tokens.
    """
    words = Words(word_starts, is_maskable)
    until_break = words.words_until_break(len(span_probabilities))
    lengths = sample_lengths(
        random_bits(keys, Stream.SPAN_LENGTH, position_ids), span_probabilities
    )
    # Drawing tokens again until one is not selected is the same as taking all tokens in random
    # order and skipping those that are selected: a token that was drawn before is selected.
    ranks = random_bits(keys, Stream.MASK_SELECTION, position_ids)
    anchors, _ = shuffle_positions(ranks, is_maskable)
    is_selected = np.zeros(is_maskable.shape, dtype=bool)
    remaining = num_predictions.astype(np.int64)
    for index in range(anchors.shape[1]):
        rows = np.flatnonzero(remaining > 0)
        if not len(rows):
            break
        rows = rows[~is_selected[rows, anchors[rows, index]]]
        if not len(rows):
            continue
        anchor = anchors[rows, index]
        first_words = words.word_of_token[rows, anchor]
        num_words = np.minimum(lengths[rows, anchor], until_break[first_words])
        begins, ends = words.begins[first_words], words.ends[first_words + num_words - 1]
        columns = begins[:, None] + np.arange((ends - begins).max())
        in_span = columns < ends[:, None]
        columns = np.where(in_span, columns, begins[:, None])
        is_new = in_span & ~is_selected[rows[:, None], columns]
        is_new &= np.cumsum(is_new, axis=1) <= remaining[rows, None]
        span_index, offset = np.nonzero(is_new)
        is_selected[rows[span_index], columns[span_index, offset]] = True
        remaining[rows] -= is_new.sum(axis=1)
    return is_selected


def geometric_probabilities(max_span_length: int, p: float) -> np.ndarray:
    """Returns the probabilities of spans of 1 to `max_span_length` words, p (1 - p)^(n - 1)."""
    weights = p * (1 - p) ** np.arange(max_span_length)
    return weights / weights.sum()


def find_span_edges(is_selected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first and last position of the span of each selected token, [B, L] int64."""
    length = is_selected.shape[1]
    positions = np.arange(length)
    padded = np.pad(is_selected, ((0, 0), (1, 1)))
    is_first, is_last = is_selected & ~padded[:, :-2], is_selected & ~padded[:, 2:]
    firsts = np.maximum.accumulate(np.where(is_first, positions, 0), axis=1)
    reversed_lasts = np.where(is_last, positions, length - 1)[:, ::-1]
    return firsts, np.minimum.accumulate(reversed_lasts, axis=1)[:, ::-1]


def span_boundary_fields(
    is_selected: np.ndarray,
    is_maskable: np.ndarray,
    prediction_index: np.ndarray,
    shape: tuple[int, int],
) -> dict[str, np.ndarray]:
    """Lists the targets of the span boundary objective, entry by entry those of masked LM.

    A span has targets if the tokens before and after it are text: at an edge of the text, one of
    them is a special token. Only the first `MAX_SPAN_TARGETS` tokens of a span are targets.

    Args:
      is_selected, is_maskable: [B, L] bool.
      prediction_index: the entry of each selected token in `masked_lm_positions`, row by row.
      shape: (B, P).

    Returns:
      The fields `SPAN_BOUNDARY_FIELDS` of `bert_jax/batch.py`.
    """
    rows, columns = np.nonzero(is_selected)
    firsts, lasts = (edge[rows, columns] for edge in find_span_edges(is_selected))
    is_text = np.pad(is_maskable, ((0, 0), (1, 1)))
    is_target = is_text[rows, firsts] & is_text[rows, lasts + 2]  # shifted by the padding
    is_target &= columns - firsts < MAX_SPAN_TARGETS
    target_entries = rows[is_target], prediction_index[is_target]
    fields: dict[str, np.ndarray] = {}
    for name, values in (
        ("span_left_positions", firsts - 1),
        ("span_right_positions", lasts + 1),
        ("span_target_offsets", columns - firsts),
    ):
        fields[name] = np.zeros(shape, dtype=np.int32)
        fields[name][target_entries] = values[is_target]
    fields["span_target_weights"] = np.zeros(shape, dtype=np.float32)
    fields["span_target_weights"][target_entries] = 1.0
    return fields
