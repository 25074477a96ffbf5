"""Masks tokens for masked LM: single tokens, whole words, n-grams (ALBERT) or spans (SpanBERT).

As in BERT (Devlin et al. 2019, section 3.1), 15 % of the tokens that are not special are selected;
80 % of these become [MASK], 10 % a random token, and 10 % remain. What is selected depends on the
config: tokens or whole words (`select_words`), n-grams of words (`select_ngrams`), or spans of
words (`select_spans`). For BERT, read `mask_tokens` and `select_words`.

Whole-word masking selects all tokens of a word or none, as create_pretraining_data.py does with
`do_whole_word_mask`. Special tokens are never selected, and a word ends before a special token.

N-grams are as in Lan et al. 2020, section 3.1. Every word is the first word of one candidate, whose
number of words is random. Candidates are taken in random order while tokens are left to select: a
candidate that has more tokens than that is shortened by whole words, and one that overlaps a
selected word is skipped.

Differences from the original script, which lists the words of both segments one after the other:

- An n-gram ends before a special token. In the script it continues across [SEP], from the last
  words of A into B, which are not consecutive text.
- Special tokens are never predicted, and never drawn as random tokens.
- A SentencePiece word begins at a leading space. In the script, tokens with other characters than
  Latin letters and ASCII punctuation begin a word as well.

Spans are as in Joshi et al. 2020, sections 3.1 and 3.2, and `PairWithSpanMaskingScheme` of the
authors' `fairseq/data/masking.py`. A span begins at the word of a random token that is not selected
yet, and continues for a random number of words. Tokens are selected from left to right until 15 %
of the row are, so that the last word may be cut. Spans that touch or overlap are one span from then
on.

Differences from the original code:

- A span ends before a special token, for rows of several documents or packed examples. The
  original rows are one text without special tokens.
- Random tokens are drawn from a sample of the corpus (`dataset.py`), not from all of it.

RoBERTa's inputs are masked by the same rules, as Hugging Face's `DataCollatorForLanguageModeling`
does. fairseq's `mask_tokens_dataset.py` differs: it also selects <s> and </s>, rounds the number of
predictions up or down at random, and draws replacements that may be <mask>; `mask_tokens` has the
reason.
"""

from typing import NamedTuple

import numpy as np

from bert_jax.batch import MAX_SPAN_TARGETS
from bert_jax.config.data import FixedRateMasking, Masking, NGramMasking, SpanMasking
from bert_jax.data.pretraining.rng import Stream, random_bits
from bert_jax.data.pretraining.vocab_arrays import VocabArrays

# The low bits of a rank are replaced by the position, so 48 random bits are left to order 65,536
# positions, and ties go to the smaller position.
_POSITION_BITS = np.uint64(0xFFFF)
_MAX_UINT64 = np.uint64(0xFFFFFFFFFFFFFFFF)


def find_word_starts(
    input_ids: np.ndarray, is_maskable: np.ndarray, vocab_arrays: VocabArrays
) -> np.ndarray:
    """Returns [B, L] bool: maskable tokens that begin a word or follow one not maskable."""
    word_starts = vocab_arrays.word_starts[input_ids]
    word_starts[:, 0] = True
    # A token after a special token begins a word whatever its form is: with byte-level BPE the
    # first token of a text has no mark of a word, because no space precedes it.
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
    # The greedy search below reads all columns in each iteration, so columns that no row can need
    # are dropped.
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
    # A candidate has this key only at position 65,535, and if its 48 random bits are all ones.
    sort_keys[~is_candidate] = _MAX_UINT64
    sort_keys.sort(axis=1)
    return sort_keys


def _positions_of(sort_keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns whether sort keys belong to candidates, and their positions or 0, int64."""
    is_candidate = sort_keys != _MAX_UINT64
    return is_candidate, np.where(is_candidate, sort_keys & _POSITION_BITS, 0).astype(np.int64)


def _fill_greedily(sizes: np.ndarray, budgets: np.ndarray) -> np.ndarray:
    """Takes words of sizes [B, W] in order if they still fit into budgets [B].

    A size of 0 means no word. Each iteration takes all words up to the first that does not fit.
    A word that did not fit never will, so it is dropped, and few iterations are needed.

    Returns:
      [B, W] bool, True for the words taken.
    """
    taken = np.zeros(sizes.shape, dtype=bool)
    open_rows, budgets = np.arange(len(sizes)), budgets.copy()
    remaining_sizes = sizes
    while len(open_rows):
        # BERT's script skips a word that does not fit and goes on with the next one. Budgets only
        # shrink, so a word that is too large now is too large later.
        remaining_sizes = np.where(remaining_sizes <= budgets[open_rows, None], remaining_sizes, 0)
        fits = np.cumsum(remaining_sizes, axis=1) <= budgets[open_rows, None]
        newly_taken = fits & (remaining_sizes > 0)
        taken[open_rows] |= newly_taken
        budgets[open_rows] -= np.where(newly_taken, remaining_sizes, 0).sum(axis=1)
        remaining_sizes = np.where(newly_taken, 0, remaining_sizes)
        unfinished = (budgets[open_rows] > 0) & remaining_sizes.any(axis=1)
        open_rows, remaining_sizes = open_rows[unfinished], remaining_sizes[unfinished]
    return taken


def select_ngrams(
    keys: np.ndarray,
    position_ids: np.ndarray,
    word_starts: np.ndarray,
    is_maskable: np.ndarray,
    num_predictions: np.ndarray,
    max_ngram: int,
) -> np.ndarray:
    """Selects n-grams of at most `num_predictions` tokens together in each row.

    Args:
      keys: uint64 random keys, [B, 1] or [B, L].
      position_ids: positions within the example, [1, L] or [B, L].
      word_starts, is_maskable: [B, L] bool; the words end before tokens that are not maskable.
      num_predictions: [B], the largest number of tokens to select in each row.
      max_ngram: the largest number of words of an n-gram.

    Returns:
      [B, L] bool, True at the selected tokens.
    """
    ranks = random_bits(keys, Stream.MASK_SELECTION, position_ids)
    lengths = random_bits(keys, Stream.SPAN_LENGTH, position_ids)
    words = Words(word_starts, is_maskable)
    first_positions, num_candidates = shuffle_positions(ranks, word_starts)
    sampled_lengths = sample_lengths(lengths, ngram_probabilities(max_ngram))
    ngram_lengths = np.minimum(sampled_lengths[word_starts], words.words_until_break(max_ngram))

    # The extra entries let an n-gram at the very end be indexed without a bound check.
    is_selected = np.zeros(words.num_words + max_ngram, dtype=bool)  # by word
    remaining, offsets = num_predictions.astype(np.int64), np.arange(max_ngram)
    for candidate in range(first_positions.shape[1]):
        rows = np.flatnonzero((remaining > 0) & (candidate < num_candidates))
        if not len(rows):
            break
        first_words = words.word_of_token[rows, first_positions[rows, candidate]]
        num_words: np.ndarray = ngram_lengths[first_words]
        # ALBERT's script shortens a candidate by whole words until it fits. All rows do so
        # together, at most `max_ngram` times.
        for _ in range(max_ngram):
            num_words -= words.num_tokens(first_words, num_words) > remaining[rows]
        candidate_words = first_words[:, None] + offsets
        in_ngram = offsets < num_words[:, None]
        overlaps = np.any(is_selected[candidate_words] & in_ngram, axis=1)
        num_words = np.where(overlaps, 0, num_words)
        is_selected[candidate_words[in_ngram & ~overlaps[:, None]]] = True
        remaining[rows] -= words.num_tokens(first_words, num_words)
    return is_selected[words.word_of_token] & is_maskable


def ngram_probabilities(max_ngram: int) -> np.ndarray:
    """Returns the probabilities of 1 to `max_ngram` words, proportional to 1 / n."""
    weights = 1.0 / np.arange(1, max_ngram + 1)
    return weights / weights.sum()


def sample_lengths(bits: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Maps random uint64 numbers to lengths from 1 on, int64, with the given probabilities."""
    # A float64 has 53 bits of precision. With all 64 bits the product could round up to 1.
    uniform = (bits >> np.uint64(11)) * 2.0**-53
    # Without the last sum, which may be 0.9999999 and would make a length that does not exist.
    return 1 + np.searchsorted(np.cumsum(probabilities)[:-1], uniform, side="right")


class Words:
    """Numbers the words of all rows from left to right, row by row.

    Attributes:
      num_words: the number of words.
      word_of_token: [B, L] int64, the word of each maskable token; meaningless at other positions.
      begins, ends: [W] int64, the columns of the first token of each word, and of the last plus 1.
    """

    def __init__(self, word_starts: np.ndarray, is_maskable: np.ndarray) -> None:
        self._rows, self.begins = np.nonzero(word_starts)
        self.num_words = len(self.begins)
        counts = np.cumsum(word_starts.ravel()) - 1
        # The clip is for the special token before the first word, whose count would be -1.
        self.word_of_token = counts.reshape(word_starts.shape).clip(0)
        sizes = np.bincount(self.word_of_token[is_maskable], minlength=self.num_words)
        self.ends = self.begins + sizes
        self._first_tokens = np.append(0, np.cumsum(sizes))

    def num_tokens(self, first_words: np.ndarray, num_words: np.ndarray) -> np.ndarray:
        """Returns the number of tokens of `num_words` words from `first_words` on."""
        return self._first_tokens[first_words + num_words] - self._first_tokens[first_words]

    def words_until_break(self, limit: int) -> np.ndarray:
        """Returns how many words follow each other without a special token or the end of the row.

        Returns:
          [W] int64, the number of words from each word on, itself included, at most `limit`.
        """
        if not self.num_words:
            return np.zeros(0, dtype=np.int64)
        is_last = np.append(
            (self._rows[1:] != self._rows[:-1]) | (self.begins[1:] != self.ends[:-1]), True
        )
        last_words = np.flatnonzero(is_last)
        words = np.arange(self.num_words)
        return np.minimum(last_words[np.searchsorted(last_words, words)] - words + 1, limit)


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
        # Spans of different lengths are read as one rectangle; what is beyond a span repeats its
        # first column, which stays inside the row.
        columns = begins[:, None] + np.arange((ends - begins).max())
        in_span = columns < ends[:, None]
        columns = np.where(in_span, columns, begins[:, None])
        is_new = in_span & ~is_selected[rows[:, None], columns]
        # SpanBERT stops in the middle of a word when the number of predictions is reached.
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
    """Lists the targets of the span boundary objective, entry by entry as for masked LM.

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


def mask_tokens(
    input_ids: np.ndarray,
    attention_mask: np.ndarray,
    keys: np.ndarray,
    config: FixedRateMasking,
    max_predictions_per_seq: int,
    vocab_arrays: VocabArrays,
    position_ids: np.ndarray | None = None,
    replacement_ids: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Masks the tokens of a batch.

    The number of predictions of a row is the smaller of `max_predictions_per_seq` and,

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
      `input_ids` [B, L] int32 after the replacement of selected tokens, `masked_lm_positions` and
      `masked_lm_ids` [B, P] int32, `masked_lm_weights` [B, P] float32, `sampling_seeds` [B, P]
      int32. Positions are in ascending order; unused entries are 0. With `SpanMasking` also the
      fields `SPAN_BOUNDARY_FIELDS`.
    """
    positions = np.arange(input_ids.shape[1])[None, :] if position_ids is None else position_ids
    # Special tokens are not predicted, for RoBERTa either: <s> is always the first token, so
    # predicting it teaches nothing, and a replaced </s> would remove the boundary of two documents.
    # Hugging Face's collator does the same, so that pretraining continued there has the same masks.
    is_maskable = (attention_mask != 0) & ~vocab_arrays.is_special[input_ids]
    keys_2d = keys[:, None] if keys.ndim == 1 else keys
    shape = (len(input_ids), max_predictions_per_seq)
    is_selected = _select(
        input_ids, attention_mask, is_maskable, keys_2d, positions, config, shape[1], vocab_arrays
    )
    selection = Selection.of(is_selected, draw_once_per_span=isinstance(config, SpanMasking))
    fields = masked_lm_fields(input_ids, selection, keys_2d, positions, shape)
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
    config: FixedRateMasking,
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
            # ALBERT's script takes the fraction of all tokens, [CLS] and [SEP] included, though it
            # never predicts those.
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
            # SpanBERT's code rounds up, and BERT's to the nearest number.
            num_predictions = np.ceil(num_maskable * config.mlm_probability)
            return select_spans(
                keys,
                position_ids,
                word_starts,
                is_maskable,
                num_predictions.clip(0, max_predictions_per_seq),
                geometric_probabilities(config.max_span_length, config.geometric_p),
            )


class Selection(NamedTuple):
    """Holds the selected tokens of all rows, each array [number of selected tokens].

    Attributes:
      rows, columns: the position of the token.
      prediction_indices: the entry of the token among its row's predictions.
      draw_columns: the column whose random number decides between [MASK], a random token and the
        original: the column of the token, or of the first token of its span.
    """

    rows: np.ndarray
    columns: np.ndarray
    prediction_indices: np.ndarray
    draw_columns: np.ndarray

    @classmethod
    def of(cls, is_selected: np.ndarray, *, draw_once_per_span: bool) -> "Selection":
        """Lists the tokens where `is_selected` [B, L] is True."""
        rows, columns = np.nonzero(is_selected)
        num_selected = np.bincount(rows, minlength=len(is_selected))
        first_entries = np.repeat(np.cumsum(num_selected) - num_selected, num_selected)
        draw_columns = columns
        if draw_once_per_span:
            # As in SpanBERT, all tokens of a span become [MASK], random or stay together.
            draw_columns = find_span_edges(is_selected)[0][rows, columns]
        return cls(rows, columns, np.arange(len(rows)) - first_entries, draw_columns)


def masked_lm_fields(
    input_ids: np.ndarray,
    selection: Selection,
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
    # Fields of a batch are int32, so the 32 random bits are stored as one.
    seeds[entries] = (bits >> np.uint64(32)).astype(np.uint32).view(np.int32)
    return {
        "masked_lm_positions": positions,
        "masked_lm_ids": ids,
        "masked_lm_weights": weights,
        "sampling_seeds": seeds,
    }


def _replace_tokens(
    input_ids: np.ndarray,
    selection: Selection,
    keys: np.ndarray,
    position_ids: np.ndarray,
    config: FixedRateMasking,
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
    # Multiplying 32 random bits and shifting avoids the division of a modulo; the bias is below one
    # part in 100,000 for a vocabulary of 30,000 tokens.
    random_choice = (random_choice * np.uint64(len(replacement_ids))) >> np.uint64(32)
    unmasked_ids = np.where(
        action < config.mask_replace_prob + config.random_replace_prob,
        replacement_ids[random_choice],
        original,
    )
    masked = input_ids.copy()
    masked[rows, columns] = np.where(action < config.mask_replace_prob, mask_id, unmasked_ids)
    return masked
