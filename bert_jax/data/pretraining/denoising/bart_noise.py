"""Adds BART's noise to a document: permutation, masking, deletion, infilling, rotation.

The steps and their order are those of `fairseq/data/denoising_dataset.py` (Lewis et al. 2020,
section 2.2). These things differ:

- sentences end where the corpus says so. fairseq looks for the token of a full stop, which it knows
  for GPT-2's vocabulary only; with any other one its sentences never move;
- random tokens are never special tokens;
- an inserted token is random with the same probability as any other, and `TokenMasking` chooses
  from all tokens instead of the first tokens of words;
- random numbers come from the key of the example.
"""

import functools
import math

import numpy as np

from bert_jax.data.pretraining.denoising.config import (
    BartDenoising,
    TextInfilling,
    TokenDeletion,
    TokenMasking,
)
from bert_jax.data.pretraining.rng import ExampleRng, Stream
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.data.pretraining.windows import TextWindow


def add_bart_noise(
    text: TextWindow, rng: ExampleRng, config: BartDenoising, vocab_arrays: VocabArrays
) -> np.ndarray:
    """Returns the ids of a document with noise, [n] int32, without special tokens around it."""
    ids, is_sentence_start = permute_sentences(text, rng, config.permuted_sentences)
    tokens = _ReplacementTokens(rng, config.random_token_prob, vocab_arrays)
    match config.token_noise:
        case TokenMasking(ratio=ratio):
            ids = ids.copy()
            chosen = _choose_tokens(len(ids), rng, ratio)
            ids[chosen] = tokens.draw(len(chosen))
        case TokenDeletion(ratio=ratio):
            ids = np.delete(ids, _choose_tokens(len(ids), rng, ratio))
        case TextInfilling() as infilling:
            # A byte-level token has no mark of a new word where its sentence begins.
            is_word_start = vocab_arrays.word_starts[ids] | is_sentence_start
            ids = _infill(ids, rng, infilling, tokens, is_word_start)
        case None:
            pass
    if rng.uniform(Stream.ROTATION) < config.rotation_prob:
        ids = np.roll(ids, -rng.randint(len(ids) + 1, Stream.ROTATION, 1))
    return ids


def permute_sentences(
    text: TextWindow, rng: ExampleRng, fraction: float
) -> tuple[np.ndarray, np.ndarray]:
    """Exchanges the places of a fraction of the sentences, rounded up.

    Returns:
      The ids, [n] int32, and whether a sentence begins at each of them, [n] bool. The beginning of
      the window does not count, because it may be in the middle of a sentence.
    """
    num_sentences = len(text.sentence_ends)
    num_permuted = math.ceil(num_sentences * fraction)
    chosen = rng.permutation(num_sentences, Stream.SENTENCE_CHOICE)[:num_permuted]
    order = np.arange(num_sentences)
    order[chosen] = chosen[rng.permutation(num_permuted, Stream.SENTENCE_PERMUTATION)]
    sentences = np.split(text.ids.astype(np.int32), text.sentence_ends[:-1].astype(np.int64))
    is_start = [np.arange(len(sentence)) == 0 for sentence in sentences]
    is_start[0][:] = False
    return (
        np.concatenate([sentences[index] for index in order.tolist()]),
        np.concatenate([is_start[index] for index in order.tolist()]),
    )


class _ReplacementTokens:
    """Draws the tokens that replace others: the mask token, or a random one."""

    def __init__(self, rng: ExampleRng, random_token_prob: float, vocab_arrays: VocabArrays):
        self._rng, self._random_token_prob = rng, random_token_prob
        self._vocab_arrays, self._num_sampled = vocab_arrays, 0

    def draw(self, n: int) -> np.ndarray:
        """Draws [n] int32 ids; each call draws new ones."""
        random_ids, start = self._vocab_arrays.maskable_ids, self._num_sampled
        self._num_sampled += n
        is_random = self._rng.uniforms(n, Stream.MASK_ACTION, start) < self._random_token_prob
        choice = self._rng.uniforms(n, Stream.RANDOM_TOKEN, start) * len(random_ids)
        random_tokens = random_ids[choice.astype(np.int64)]
        return np.where(is_random, random_tokens, self._vocab_arrays.mask_id).astype(np.int32)


def _choose_tokens(num_tokens: int, rng: ExampleRng, ratio: float) -> np.ndarray:
    num_chosen = math.ceil(num_tokens * ratio)
    return rng.permutation(num_tokens, Stream.MASK_SELECTION)[:num_chosen]


def _infill(
    ids: np.ndarray,
    rng: ExampleRng,
    config: TextInfilling,
    tokens: _ReplacementTokens,
    is_word_start: np.ndarray,
) -> np.ndarray:
    """Replaces spans of words by one token each, and inserts a token for each span of length 0.

    Spans may overlap, as in fairseq: a span that begins inside another one has no token.
    """
    starts = np.flatnonzero(is_word_start)
    num_words = len(starts)
    lengths = draw_span_lengths(math.ceil(num_words * config.ratio), rng, config.poisson_lambda)
    num_inserted = int((lengths == 0).sum())
    lengths = lengths[lengths > 0]
    first_words = rng.permutation(num_words, Stream.MASK_SELECTION)[: len(lengths)]
    begins = starts[first_words]
    # A span reaches to the next word after its last one. Tokens before the first word, which
    # continue a word that was cut, belong to no span.
    ends = np.append(starts, len(ids))[np.minimum(first_words + lengths, num_words)]
    changes = np.zeros(len(ids) + 2, np.int64)
    np.add.at(changes, begins + 1, 1)
    np.add.at(changes, np.maximum(ends, begins + 1), -1)
    is_deleted = np.cumsum(changes)[: len(ids)] > 0
    result = ids.copy()
    result[begins] = tokens.draw(len(begins))
    return _insert(result[~is_deleted], tokens.draw(num_inserted), rng)


def _insert(ids: np.ndarray, inserted: np.ndarray, rng: ExampleRng) -> np.ndarray:
    """Inserts tokens at random places; all results are equally likely."""
    length = len(ids) + len(inserted)
    is_inserted = np.zeros(length, bool)
    is_inserted[rng.permutation(length, Stream.INSERTION)[: len(inserted)]] = True
    result = np.empty(length, np.int32)
    result[is_inserted], result[~is_inserted] = inserted, ids
    return result


def draw_span_lengths(num_words: int, rng: ExampleRng, poisson_lambda: float) -> np.ndarray:
    """Draws Poisson lengths until their sum is at least `num_words`; the last one is shortened.

    Returns:
      [n] int64, of sum `num_words`; lengths may be 0.
    """
    cumulative = _poisson_table(poisson_lambda)
    lengths = np.zeros(0, np.int64)
    while lengths.sum() < num_words:
        uniforms = rng.uniforms(num_words, Stream.SPAN_LENGTH, len(lengths))
        sampled = np.searchsorted(cumulative, uniforms, side="right")
        lengths = np.concatenate((lengths, sampled))
    sums = np.cumsum(lengths)
    num_spans = int(np.searchsorted(sums, num_words)) + 1 if num_words else 0
    lengths = lengths[:num_spans]
    if num_spans:
        lengths[-1] -= sums[num_spans - 1] - num_words
    return lengths


@functools.cache
def _poisson_table(poisson_lambda: float) -> np.ndarray:
    """Returns cumulative probabilities of lengths 0, 1, ..., cut at a probability below 1e-7."""
    probabilities = [math.exp(-poisson_lambda)]
    while len(probabilities) < 128 and (
        len(probabilities) <= poisson_lambda or probabilities[-1] >= 1e-7
    ):
        probabilities.append(probabilities[-1] * poisson_lambda / len(probabilities))
    cumulative = np.cumsum(probabilities)
    return cumulative / cumulative[-1]
