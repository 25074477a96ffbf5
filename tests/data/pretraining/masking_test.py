"""Compares masking with a slow reference, and its rates over millions of tokens with the paper.

Covers bert_jax/data/pretraining/masking.py and word_masking.py, the masking configs, and the order
of MPNet's predictions (bert_jax/models/mpnet/model.py).
"""

import jax
import numpy as np
import pytest

from bert_jax.apps.testing.random_corpus import CLS, MASK, SEP, random_vocab_arrays
from bert_jax.config.data import Masking, NGramMasking, SpanMasking
from bert_jax.data.pretraining.masking import mask_tokens
from bert_jax.data.pretraining.rng import ExampleRng, Stream, epoch_key, example_keys
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.errors import ConfigError
from bert_jax.models.mpnet.model import permutation_ranks

LENGTH = 128


def _keys(count: int, seed: int = 0) -> np.ndarray:
    return example_keys(np.full(count, epoch_key(seed, 0), dtype=np.uint64), np.arange(count))


def _rows(count: int, table: VocabArrays, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns padded sequences [CLS] A [SEP] B [SEP] of random lengths, some very short."""
    rng = np.random.default_rng(seed)
    ids = rng.choice(table.maskable_ids, (count, LENGTH)).astype(np.int32)
    ends = np.where(rng.random(count) < 0.2, rng.integers(4, LENGTH, count), LENGTH)
    attention = (np.arange(LENGTH) < ends[:, None]).astype(np.int32)
    ids[:, 0] = CLS
    ids[np.arange(count), rng.integers(1, ends - 2)] = SEP
    ids[np.arange(count), ends - 1] = SEP
    return np.where(attention == 1, ids, 0).astype(np.int32), attention


def _slow_mask(
    ids: list[int], attention: list[int], key: int, config: Masking, limit: int, table: VocabArrays
) -> tuple[list[int], dict[int, int]]:
    """Masks one sequence token by token; returns the masked ids and {position: original id}."""
    draws = ExampleRng(key)
    ordinary = [
        bool(real) and not table.is_special[i] for i, real in zip(ids, attention, strict=True)
    ]
    groups: list[list[int]] = []
    for position, token in enumerate(ids):
        if not ordinary[position]:
            continue
        goes_on = config.whole_word_mask and not table.word_starts[token] and ordinary[position - 1]
        if goes_on and position > 0:
            groups[-1].append(position)
        else:
            groups.append([position])
    wanted = min(limit, max(1, round(sum(ordinary) * config.mlm_probability)))
    # Positions are sorted by the upper 48 bits of a random number, then by position.
    groups.sort(key=lambda group: (draws.bits(Stream.MASK_SELECTION, group[0]) >> 16, group[0]))
    selected: list[int] = []
    for group in groups:
        if len(selected) + len(group) <= wanted:
            selected += group
    masked = list(ids)
    for position in selected:
        action = draws.uniform(Stream.MASK_ACTION, position)
        if action < config.mask_replace_prob:
            masked[position] = table.mask_id
        elif action < config.mask_replace_prob + config.random_replace_prob:
            pick = (draws.bits(Stream.RANDOM_TOKEN, position) >> 32) * len(table.maskable_ids) >> 32
            masked[position] = int(table.maskable_ids[pick])
    return masked, {position: ids[position] for position in sorted(selected)}


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize(
    ("rate", "limit", "word_starts"), [(0.15, 20, 0.75), (0.15, 7, 0.2), (0.6, 128, 0.4)]
)
def test_masks_equal_the_slow_reference(whole_word, rate, limit, word_starts) -> None:
    table = random_vocab_arrays(word_start_fraction=word_starts)
    config = Masking(mlm_probability=rate, whole_word_mask=whole_word)
    ids, attention = _rows(300, table)
    keys = _keys(300)
    fast = mask_tokens(ids, attention, keys, config, limit, table)
    for row in range(300):
        masked, labels = _slow_mask(
            ids[row].tolist(), attention[row].tolist(), int(keys[row]), config, limit, table
        )
        used = fast["masked_lm_weights"][row] == 1
        assert fast["input_ids"][row].tolist() == masked
        assert fast["masked_lm_positions"][row][used].tolist() == list(labels)
        assert fast["masked_lm_ids"][row][used].tolist() == list(labels.values())
        assert not fast["masked_lm_positions"][row][~used].any()
        assert not fast["masked_lm_ids"][row][~used].any()
        assert used.sum() == used.argmin() or used.all()  # used slots come first


def test_masks_of_a_row_do_not_depend_on_other_rows() -> None:
    table, config = random_vocab_arrays(), Masking(whole_word_mask=True)
    ids, attention = _rows(50, table)
    together = mask_tokens(ids, attention, _keys(50), config, 20, table)
    for row in range(0, 50, 7):
        here = slice(row, row + 1)
        alone = mask_tokens(ids[here], attention[here], _keys(50)[here], config, 20, table)
        for name, array in alone.items():
            np.testing.assert_array_equal(array, together[name][here])


@pytest.mark.parametrize("whole_word", [False, True])
def test_masking_rates_over_a_million_tokens(whole_word: bool) -> None:
    table = random_vocab_arrays()
    ids, attention = _rows(12_000, table)
    out = mask_tokens(ids, attention, _keys(12_000), Masking(whole_word_mask=whole_word), 20, table)
    ordinary = (attention == 1) & ~table.is_special[ids]
    assert ordinary.sum() > 1_000_000
    row, place = np.nonzero(out["masked_lm_weights"])
    position = out["masked_lm_positions"][row, place]
    original, seen = out["masked_lm_ids"][row, place], out["input_ids"][row, position]
    count = len(row)

    # The exact number for each sequence, or slightly fewer with whole words.
    wanted = np.minimum(np.rint(ordinary.sum(axis=1) * 0.15).clip(1), 20)
    got = out["masked_lm_weights"].sum(axis=1)
    if whole_word:
        assert (got <= wanted).all() and got.sum() > 0.99 * wanted.sum()
    else:
        np.testing.assert_array_equal(got, wanted)
    assert count / ordinary.sum() == pytest.approx(0.15, abs=0.002)

    assert ordinary[row, position].all()
    np.testing.assert_array_equal(original, ids[row, position])
    untouched = np.ones_like(ordinary)
    untouched[row, position] = False
    np.testing.assert_array_equal(out["input_ids"][untouched], ids[untouched])

    spread = 5 * 0.5 / np.sqrt(count)
    random_original = 0.1 / len(table.maskable_ids)
    assert (seen == MASK).mean() == pytest.approx(0.8, abs=spread)
    assert (seen == original).mean() == pytest.approx(0.1 + random_original, abs=spread)
    random_ids = seen[(seen != MASK) & (seen != original)]
    assert len(random_ids) / count == pytest.approx(0.1, abs=spread)
    assert not table.is_special[random_ids].any()
    counts = np.bincount(random_ids, minlength=table.vocab_size)[5:]
    expected = counts.mean()
    assert ((counts - expected) ** 2 / expected).sum() < 994 + 5 * np.sqrt(2 * 994)


def test_selection_is_uniform_over_positions() -> None:
    table = random_vocab_arrays()
    ids, attention = _rows(1, table, seed=3)
    ids, attention = ids.repeat(30_000, axis=0), attention.repeat(30_000, axis=0)
    out = mask_tokens(ids, attention, _keys(30_000), Masking(), 20, table)
    row, place = np.nonzero(out["masked_lm_weights"])
    counts = np.bincount(out["masked_lm_positions"][row, place], minlength=LENGTH)
    ordinary = (attention[0] == 1) & ~table.is_special[ids[0]]
    assert not counts[~ordinary].any()
    expected = len(row) / ordinary.sum()
    assert np.abs(counts[ordinary] - expected).max() < 5.5 * np.sqrt(expected)


def test_whole_word_masking_selects_whole_words() -> None:
    table = random_vocab_arrays(word_start_fraction=0.5)
    ids, attention = _rows(2_000, table)
    out = mask_tokens(ids, attention, _keys(2_000), Masking(whole_word_mask=True), 20, table)
    ordinary = (attention == 1) & ~table.is_special[ids]
    selected = np.zeros_like(ordinary)
    row, place = np.nonzero(out["masked_lm_weights"])
    selected[row, out["masked_lm_positions"][row, place]] = True
    goes_on = ordinary[:, 1:] & ordinary[:, :-1] & ~table.word_starts[ids[:, 1:]]
    np.testing.assert_array_equal(selected[:, 1:][goes_on], selected[:, :-1][goes_on])
    assert (selected[:, 1:] & goes_on).sum() > 1000


def test_word_longer_than_the_limit_is_not_selected() -> None:
    table = random_vocab_arrays(word_start_fraction=0.0)
    ids = np.array([[CLS, *range(5, 25), SEP]], dtype=np.int32)  # one word of 20 tokens
    out = mask_tokens(ids, np.ones_like(ids), _keys(1), Masking(whole_word_mask=True), 20, table)
    assert not out["masked_lm_weights"].any()
    np.testing.assert_array_equal(out["input_ids"], ids)


def test_rows_of_special_tokens_are_not_masked() -> None:
    table = random_vocab_arrays()
    ids = np.array([[CLS, SEP, 0, 0], [0, 0, 0, 0]], dtype=np.int32)
    attention = np.array([[1, 1, 0, 0], [0, 0, 0, 0]], dtype=np.int32)
    for whole_word in (False, True):
        out = mask_tokens(ids, attention, _keys(2), Masking(whole_word_mask=whole_word), 2, table)
        assert not out["masked_lm_weights"].any()
        np.testing.assert_array_equal(out["input_ids"], ids)


@pytest.mark.parametrize(
    ("masking_class", "fields", "message"),
    [
        (Masking, {"mlm_probability": 1.5}, "mlm_probability is 1.5, expected .* at most 1"),
        (SpanMasking, {"mask_replace_prob": 0.95}, "0.95 and random_replace_prob is 0.1, expected"),
        (NGramMasking, {"max_ngram": 0}, "max_ngram is 0, expected a number at least 1"),
        (SpanMasking, {"max_span_length": 0}, "max_span_length is 0, expected a number at least 1"),
        (SpanMasking, {"geometric_p": 1.0}, "geometric_p is 1.0, expected .* below 1"),
    ],
)
def test_masking_configs_refuse_wrong_numbers(masking_class, fields, message) -> None:
    with pytest.raises(ConfigError, match=f"data.masking.{message}|{message}"):
        masking_class(**fields)


def test_order_of_predictions_over_a_million_tokens_of_novels(novel_rows) -> None:
    ids, keys, table = novel_rows
    attention = np.ones_like(ids)
    out = mask_tokens(ids, attention, keys, Masking(whole_word_mask=True), 19, table)
    assert attention.sum() > 1_000_000
    is_used, positions = out["masked_lm_weights"] > 0, out["masked_lm_positions"]
    ranks = np.asarray(jax.jit(permutation_ranks)(out["sampling_seeds"], is_used))
    for row in range(200):  # a loop over the predictions, with the random numbers one at a time
        draws = ExampleRng(int(keys[row]))
        seeds = [
            draws.bits(Stream.SAMPLING_SEED, p) >> 32 for p in positions[row][is_used[row]].tolist()
        ]
        signed = [seed - (seed >> 31 << 32) for seed in seeds]
        np.testing.assert_array_equal(ranks[row, is_used[row]], np.argsort(np.argsort(signed)))

    full_rows = is_used.all(axis=1)  # with words of one token only, all predictions are used
    count = full_rows.sum()
    assert count > 0.9 * len(ids)
    ranks = ranks[full_rows]
    np.testing.assert_array_equal(np.sort(ranks, axis=1), np.tile(np.arange(19), (count, 1)))
    # Every prediction has every rank equally often, by Pearson's chi-squared statistic with 18 * 18
    # degrees of freedom, and adjacent predictions are independent.
    table_of_ranks = np.stack([np.bincount(column, minlength=19) for column in ranks.T])
    expected = count / 19
    statistic = ((table_of_ranks - expected) ** 2 / expected).sum()
    assert abs(statistic - 18**2) < 5 * np.sqrt(2 * 18**2)
    is_later = ranks[:, 1:] > ranks[:, :-1]
    assert np.abs(is_later.mean(axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(count)
    # Whether the model reads [MASK] does not depend on the rank.
    inputs = np.take_along_axis(out["input_ids"], positions, axis=1)[full_rows]
    by_rank = np.take_along_axis(inputs == table.mask_id, np.argsort(ranks, axis=1), axis=1)
    assert np.abs(by_rank.mean(axis=0) - 0.8).max() < 5 * 0.4 / np.sqrt(count)
