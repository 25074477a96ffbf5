"""Compares BART's noise with a slow reference that follows fairseq's code, by statistics.

Covers bert_jax/data/pretraining/denoising.py.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from bert_jax.apps.testing.random_corpus import MASK, random_vocab_arrays
from bert_jax.config.data import BartDenoising, TextInfilling, TokenDeletion, TokenMasking
from bert_jax.data.pretraining.denoising import add_bart_noise, draw_span_lengths, permute_sentences
from bert_jax.data.pretraining.rng import ExampleRng
from bert_jax.data.pretraining.windows import TextWindow
from bert_jax.errors import ConfigError
from tests.data.pretraining.conftest import NovelRows

VOCABULARY = random_vocab_arrays(900, word_start_fraction=0.6)


def _text(ids: np.ndarray, sentence_length: int = 10) -> TextWindow:
    ends = np.arange(sentence_length, len(ids), sentence_length)
    return TextWindow(ids, np.append(ends, len(ids)).astype(np.uint32))


def _slow_infilling(
    ids: list[int], is_word_start: list[bool], rng: np.random.Generator, config: TextInfilling
) -> list[int]:
    """Infills a text with masks only, one word and one token at a time, as fairseq does."""
    starts = [position for position, is_start in enumerate(is_word_start) if is_start]
    budget = math.ceil(len(starts) * config.ratio)
    lengths: list[int] = []
    while sum(lengths) < budget:
        lengths.append(int(rng.poisson(config.poisson_lambda)))
    lengths[-1] -= sum(lengths) - budget
    num_inserted = lengths.count(0)
    lengths = [length for length in lengths if length]
    chosen = rng.choice(starts, len(lengths), replace=False).tolist()
    result, deleted = list(ids), set[int]()
    for start, num_words in zip(chosen, lengths, strict=True):
        result[start] = MASK
        position, words_left = start + 1, num_words
        while position < len(ids):
            words_left -= is_word_start[position]
            if not words_left:
                break
            deleted.add(position)
            position += 1
    result = [token for position, token in enumerate(result) if position not in deleted]
    length = len(result) + num_inserted
    insertions = set(rng.choice(length, num_inserted, replace=False).tolist())
    tokens = iter(result)
    return [MASK if position in insertions else next(tokens) for position in range(length)]


def test_infilling_has_the_statistics_of_a_slow_reference() -> None:
    generator = np.random.default_rng(0)
    config = BartDenoising(permuted_sentences=0.0, random_token_prob=0.0)
    infilling = TextInfilling()
    num_texts, length = 3000, 120
    measures: list[Callable[[list[int]], float]] = [
        len,
        lambda ids: ids.count(MASK),
        lambda ids: ids[:60].count(MASK),
        lambda ids: sum(a == b == MASK for a, b in itertools.pairwise(ids)),
        lambda ids: ids.index(MASK),
    ]
    values = np.zeros((2, len(measures), num_texts))
    for text in range(num_texts):
        ids = generator.integers(5, 900, length)
        noised = add_bart_noise(_text(ids), ExampleRng(text), config, VOCABULARY).tolist()
        is_word_start = VOCABULARY.word_starts[ids]
        is_word_start[10::10] = True  # sentences
        slow = _slow_infilling(ids.tolist(), is_word_start.tolist(), generator, infilling)
        for source, result in enumerate((noised, slow)):
            for index, measure in enumerate(measures):
                values[source, index, text] = measure(result)
    for fast, slow in zip(values[0], values[1], strict=True):
        error = math.sqrt((fast.var() + slow.var()) / num_texts)
        assert abs(fast.mean() - slow.mean()) < 4 * error
        assert 0.9 < fast.std() / slow.std() < 1.1


def test_infilled_text_keeps_the_order_of_its_tokens(novel_rows: NovelRows) -> None:
    config = BartDenoising(permuted_sentences=0.0, random_token_prob=0.0)
    with_random = BartDenoising(permuted_sentences=0.0, random_token_prob=0.5)
    vocab_arrays = novel_rows.vocab_arrays
    num_text = num_masks = num_other_masks = 0
    for row, key in zip(novel_rows.input_ids[:500], novel_rows.keys.tolist(), strict=False):
        ids, rng = row[1:-1], ExampleRng(key)
        noised = add_bart_noise(_text(ids), rng, config, vocab_arrays)
        text_tokens = noised[noised != vocab_arrays.mask_id]
        remaining = iter(ids.tolist())
        assert all(token in remaining for token in text_tokens.tolist())
        num_text, num_masks = (
            num_text + len(text_tokens),
            num_masks + len(noised) - len(text_tokens),
        )
        other = add_bart_noise(_text(ids), rng, with_random, vocab_arrays)
        is_mask = other == vocab_arrays.mask_id
        num_other_masks += int(is_mask.sum())
        assert len(other) == len(noised) and not vocab_arrays.is_special[other[~is_mask]].any()
    # 30 % of the words are in spans, which overlap, and there is one mask for 3 words.
    assert 0.68 < num_text / 63_000 < 0.78
    assert 0.05 < num_masks / 63_000 < 0.1
    assert abs(num_other_masks / num_masks - 0.5) < 0.03


@pytest.mark.parametrize("num_words", [0, 1, 5, 40])
def test_span_lengths_add_up_and_are_poisson(num_words: int) -> None:
    counts: Counter[int] = Counter()
    for key in range(3000):
        lengths = draw_span_lengths(num_words, ExampleRng(key), 3.0)
        assert lengths.sum() == num_words and (len(lengths) == 0 or lengths[-1] > 0)
        counts.update(lengths[:-1].tolist()[:3])
    if num_words == 40:  # the first three lengths are not cut
        total = counts.total()
        for length in range(8):
            expected = total * math.exp(-3.0) * 3.0**length / math.factorial(length)
            assert abs(counts[length] - expected) < 4.5 * math.sqrt(expected)


def test_sentences_are_permuted_as_a_whole() -> None:
    ids = np.arange(5, 45, dtype=np.uint16)
    orders: Counter[tuple[int, ...]] = Counter()
    for key in range(4800):
        permuted, is_start = permute_sentences(_text(ids), ExampleRng(key), 1.0)
        sentences = permuted.reshape(4, 10)
        assert (np.diff(sentences, axis=1) == 1).all()
        assert (np.flatnonzero(is_start) % 10 == 0).all() and is_start.sum() == 3
        assert not is_start[permuted == 5]  # the window may begin in the middle of a sentence
        orders[tuple(((sentences[:, 0] - 5) // 10).tolist())] += 1
    assert len(orders) == 24  # all orders, equally likely
    assert max(abs(count - 200) for count in orders.values()) < 4.5 * math.sqrt(200)


def test_a_fraction_of_the_sentences_moves() -> None:
    ids = np.arange(5, 105)
    for key in range(50):
        permuted, _ = permute_sentences(_text(ids), ExampleRng(key), 0.25)
        moved = (permuted.reshape(10, 10)[:, 0] != ids.reshape(10, 10)[:, 0]).sum()
        assert moved in (0, 2, 3)  # 3 of 10 sentences exchange their places
        assert sorted(permuted.tolist()) == ids.tolist()


def test_masking_and_deletion_choose_the_ratio_of_tokens() -> None:
    ids = np.arange(100, 201, dtype=np.uint16)
    base = {"permuted_sentences": 0.0, "random_token_prob": 0.0}
    hits = np.zeros(101)
    for key in range(1000):
        masking = BartDenoising(token_noise=TokenMasking(ratio=0.15), **base)
        masked = add_bart_noise(_text(ids), ExampleRng(key), masking, VOCABULARY)
        is_mask = masked == MASK
        assert is_mask.sum() == 16 and np.array_equal(masked[~is_mask], ids[~is_mask])
        hits += is_mask
        deletion = BartDenoising(token_noise=TokenDeletion(ratio=0.15), **base)
        deleted = add_bart_noise(_text(ids), ExampleRng(key), deletion, VOCABULARY)
        assert np.array_equal(deleted, ids[~is_mask])
    assert np.abs(hits - 1000 * 16 / 101).max() < 5 * math.sqrt(160)


def test_rotation_begins_at_any_token() -> None:
    ids = np.arange(10, 18)
    config = BartDenoising(token_noise=None, permuted_sentences=0.0, rotation_prob=0.5)
    counts: Counter[int] = Counter()
    for key in range(9000):
        rotated = add_bart_noise(_text(ids), ExampleRng(key), config, VOCABULARY)
        first = int(rotated[0]) - 10
        assert np.array_equal(rotated, np.roll(ids, -first))
        counts[first] += 1
    # As in fairseq, a rotation by 0 and one by the whole length are both possible.
    for first in range(1, 8):
        assert abs(counts[first] - 500) < 4.5 * math.sqrt(500)
    assert abs(counts[0] - 5500) < 4.5 * math.sqrt(9000 * 0.25)


def test_invalid_noise_raises() -> None:
    with pytest.raises(ConfigError, match=r"data.masking.token_noise.ratio"):
        TextInfilling(ratio=1.0)
    with pytest.raises(ConfigError, match=r"data.masking.permuted_sentences"):
        BartDenoising(permuted_sentences=1.5)
