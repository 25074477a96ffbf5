"""Selects n-grams of whole words for masked LM, as ALBERT's create_pretraining_data.py does.

Source: Lan et al. 2020, section 3.1. Every word is the first word of one candidate, whose number of
words is random. Candidates are taken in random order while tokens are left to select: a candidate
that has more tokens than that is shortened by whole words, and one that overlaps a selected word is
skipped.

Differences from the original script, which lists the words of both segments one after the other:

- An n-gram ends before a special token. In the script it continues across [SEP], from the last
  words of A into B, which are not consecutive text.
- Special tokens are never predicted, and never drawn as random tokens, as in `masking.py`.
- A SentencePiece word begins at a leading space. In the script, tokens with other characters than
  Latin letters and ASCII punctuation begin a word as well.
"""

import numpy as np

from bert_jax.data.pretraining.rng import Stream, random_bits
from bert_jax.data.pretraining.word_masking import shuffle_positions


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

    is_selected = np.zeros(words.num_words + max_ngram, dtype=bool)  # by word
    remaining, offsets = num_predictions.astype(np.int64), np.arange(max_ngram)
    for candidate in range(first_positions.shape[1]):
        rows = np.flatnonzero((remaining > 0) & (candidate < num_candidates))
        if not len(rows):
            break
        first_words = words.word_of_token[rows, first_positions[rows, candidate]]
        num_words: np.ndarray = ngram_lengths[first_words]
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
    uniform = (bits >> np.uint64(11)) * 2.0**-53
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
