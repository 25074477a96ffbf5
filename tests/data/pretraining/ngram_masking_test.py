"""Compares n-gram masking with a slow reference, and its statistics over a million real tokens.

Covers bert_jax/data/pretraining/masking.py.
"""

import itertools

import numpy as np
import pytest

from bert_jax.apps.testing.random_corpus import CLS, SEP, random_vocab_arrays
from bert_jax.config.data import NGramMasking
from bert_jax.data.pretraining.masking import mask_tokens, ngram_probabilities, sample_lengths
from bert_jax.data.pretraining.rng import ExampleRng, Stream, example_keys
from bert_jax.data.pretraining.vocab_arrays import VocabArrays


def _words(ids: list[int], real: list[int], table: VocabArrays) -> list[list[int]]:
    """Lists the positions of each word; a word ends before a special token."""
    words: list[list[int]] = []
    previous = False
    for position, token in enumerate(ids):
        maskable = bool(real[position]) and not table.is_special[token]
        if maskable and previous and not table.word_starts[token]:
            words[-1].append(position)
        elif maskable:
            words.append([position])
        previous = maskable
    return words


def _flat(words: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(words))


def _slow_ngrams(
    words: list[list[int]], quota: int, rng: ExampleRng, max_ngram: int
) -> list[list[int]]:
    """Selects n-grams as create_pretraining_data.py does, with lists of words."""
    probabilities = [1 / n for n in range(1, max_ngram + 1)]
    candidates = []
    for index, word in enumerate(words):
        following = [[word]]  # following[n - 1]: the n-gram that begins here
        for next_word in words[index + 1 : index + max_ngram]:
            adjacent = next_word[0] == following[-1][-1][-1] + 1
            following.append([*following[-1], next_word] if adjacent else following[-1])
        following += [following[-1]] * (max_ngram - len(following))
        candidates.append(following)
    candidates.sort(
        key=lambda ngrams: (
            rng.bits(Stream.MASK_SELECTION, ngrams[0][0][0]) >> 16,
            ngrams[0][0][0],
        )
    )
    selected: list[list[int]] = []
    covered: set[int] = set()
    for ngrams in candidates:
        if len(covered) >= quota:
            break
        uniform = rng.uniform(Stream.SPAN_LENGTH, ngrams[0][0][0]) * sum(probabilities)
        n = 1
        while n < max_ngram and uniform >= sum(probabilities[:n]):
            n += 1
        tokens = _flat(ngrams[n - 1])
        while n > 1 and len(covered) + len(tokens) > quota:
            n -= 1
            tokens = _flat(ngrams[n - 1])
        if len(covered) + len(tokens) > quota or covered & set(tokens):
            continue
        covered |= set(tokens)
        selected.append(tokens)
    return selected


@pytest.mark.parametrize(
    ("rate", "limit", "word_starts", "max_ngram"),
    [(0.15, 20, 0.75, 3), (0.15, 7, 0.2, 3), (0.6, 128, 0.4, 5), (0.15, 20, 1.0, 1)],
)
def test_ngrams_equal_the_slow_reference(rate, limit, word_starts, max_ngram) -> None:
    table = random_vocab_arrays(word_start_fraction=word_starts)
    config = NGramMasking(mlm_probability=rate, max_ngram=max_ngram)
    rng = np.random.default_rng(5)
    ids = rng.choice(table.maskable_ids, (200, 128)).astype(np.int32)
    ends = rng.integers(4, 129, 200)
    ids[:, 0] = CLS
    ids[np.arange(200), ends - 1] = ids[np.arange(200), rng.integers(1, ends - 1)] = SEP
    attention = (np.arange(128) < ends[:, None]).astype(np.int32)
    keys = example_keys(rng.integers(0, 2**63, 200).astype(np.uint64), np.arange(200))
    fast = mask_tokens(ids, attention, keys, config, limit, table)
    num_longer = 0
    for row in range(200):
        quota = min(limit, max(1, round(int(ends[row]) * rate)))
        words = _words(ids[row].tolist(), attention[row].tolist(), table)
        ngrams = _slow_ngrams(words, quota, ExampleRng(int(keys[row])), max_ngram)
        used = fast["masked_lm_weights"][row] == 1
        expected = sorted(_flat(ngrams))
        assert fast["masked_lm_positions"][row][used].tolist() == expected
        assert fast["masked_lm_ids"][row][used].tolist() == ids[row][expected].tolist()
        num_longer += sum(len(ngram) > 1 for ngram in ngrams)
    assert num_longer > 100 or max_ngram == 1


def test_ngrams_of_a_million_tokens_of_novels(novel_rows) -> None:
    ids, keys, table = novel_rows
    out = mask_tokens(ids, np.ones_like(ids), keys, NGramMasking(), 20, table)
    # 15 % of 128 tokens are 19; [UNK] is never selected.
    num_selected = out["masked_lm_weights"].sum(axis=1)
    assert (num_selected <= 19).all() and (num_selected == 19).mean() > 0.999
    rows, entries = np.nonzero(out["masked_lm_weights"])
    columns = out["masked_lm_positions"][rows, entries]
    is_selected = np.zeros(ids.shape, dtype=bool)
    is_selected[rows, columns] = True
    continues = ~table.word_starts[ids[:, 1:]] & ~table.is_special[ids[:, :-1]]
    np.testing.assert_array_equal(is_selected[:, 1:][continues], is_selected[:, :-1][continues])

    # Each token is replaced by its own draw.
    inputs, original = out["input_ids"][rows, columns], out["masked_lm_ids"][rows, entries]
    five_sigma = 5 * 0.5 / np.sqrt(len(rows))
    assert (inputs == table.mask_id).mean() == pytest.approx(0.8, abs=five_sigma)
    assert (inputs == original).mean() == pytest.approx(0.1, abs=five_sigma)

    # The mean length of runs of selected tokens, with independent random numbers.
    reference = np.random.default_rng(0)
    sample = range(0, len(ids), 10)
    slow_runs = [_independent_run_lengths(ids[row], table, reference) for row in sample]
    slow_mean, slow_error = np.mean(slow_runs), np.std(slow_runs) / np.sqrt(len(slow_runs))
    firsts = is_selected & ~np.pad(is_selected, ((0, 0), (1, 0)))[:, :-1]
    fast_runs = is_selected.sum(axis=1) / firsts.sum(axis=1)
    assert fast_runs.mean() == pytest.approx(slow_mean, abs=5 * slow_error)


def _independent_run_lengths(
    ids: np.ndarray, table: VocabArrays, rng: np.random.Generator
) -> float:
    """Returns the mean length of runs of selected tokens, selected with NumPy's random numbers."""
    words = _words(ids.tolist(), [1] * len(ids), table)
    ngram_words = [1, 2, 3]
    probabilities = np.array([1, 1 / 2, 1 / 3]) / (1 + 1 / 2 + 1 / 3)
    covered: set[int] = set()
    for index in rng.permutation(len(words)).tolist():
        if len(covered) >= 19:
            break
        n = int(rng.choice(ngram_words, p=probabilities))
        ngram = [words[index]]
        for word in words[index + 1 : index + n]:
            if word[0] != ngram[-1][-1] + 1:
                break
            ngram.append(word)
        while ngram and len(covered) + len(_flat(ngram)) > 19:
            ngram.pop()
        tokens = set(_flat(ngram))
        if not covered & tokens:
            covered |= tokens
    runs = [position for position in covered if position - 1 not in covered]
    return len(covered) / len(runs)


def test_shorter_ngrams_are_sampled_more_often() -> None:
    bits = np.random.default_rng(0).integers(0, 2**64, 1_000_000, dtype=np.uint64)
    counts = np.bincount(sample_lengths(bits, ngram_probabilities(3)), minlength=4)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:] / 1e6, np.array([6, 3, 2]) / 11, atol=0.0025)


def test_ngrams_do_not_continue_across_a_separator() -> None:
    table = random_vocab_arrays(word_start_fraction=1.0)
    ids = np.array([[CLS, 10, SEP, 11, SEP, 12, SEP]], dtype=np.int32).repeat(2000, axis=0)
    keys = np.arange(2000).astype(np.uint64) * np.uint64(7919)
    config = NGramMasking(mlm_probability=2 / 7)
    out = mask_tokens(ids, np.ones_like(ids), keys, config, 2, table)
    # Two single words of three are selected: an n-gram never has two words here.
    positions, counts = np.unique(out["masked_lm_positions"], return_counts=True)
    assert positions.tolist() == [1, 3, 5]
    assert np.abs(counts - 4000 / 3).max() < 200
