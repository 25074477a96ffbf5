"""Compares span masking with a slow reference, and its statistics over a million real tokens.

Covers bert_jax/data/pretraining/masking.py.
"""

import math

import numpy as np
import pytest

from bert_jax.apps.testing.random_corpus import CLS, SEP, random_vocab_arrays, write_corpus
from bert_jax.batch import MAX_SPAN_TARGETS
from bert_jax.config.data import PretrainingData, SingleSegment, SpanMasking
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.batch_builder import BatchBuilder
from bert_jax.data.pretraining.dataset import sample_token_ids
from bert_jax.data.pretraining.masking import geometric_probabilities, mask_tokens
from bert_jax.data.pretraining.rng import ExampleRng, Stream, example_keys
from bert_jax.data.pretraining.vocab_arrays import VocabArrays

GEOMETRIC = [0.2 * 0.8**n for n in range(10)]


class _NumpyDraws:
    """Draws anchors again and again with NumPy's random numbers, as SpanBERT's code does."""

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)

    def anchors(self, length: int):
        while True:
            yield int(self._rng.integers(length))

    def num_words(self, anchor: int, probabilities: list[float]) -> int:
        weights = np.array(probabilities)
        return 1 + int(self._rng.choice(len(weights), p=weights / weights.sum()))


class _KeyedDraws:
    """Draws the numbers that the fast code draws, by position."""

    def __init__(self, key: int):
        self._rng = ExampleRng(key)

    def anchors(self, length: int):
        # The text begins after [CLS], at position 1 of the row.
        ranks = [(self._rng.bits(Stream.MASK_SELECTION, i + 1) >> 16, i) for i in range(length)]
        return (index for _, index in sorted(ranks))

    def num_words(self, anchor: int, probabilities: list[float]) -> int:
        uniform = self._rng.uniform(Stream.SPAN_LENGTH, anchor + 1) * sum(probabilities)
        n = 1
        while n < len(probabilities) and uniform >= sum(probabilities[:n]):
            n += 1
        return n


def _slow_spans(
    text: list[int], table: VocabArrays, draws: _NumpyDraws | _KeyedDraws, rate: float
) -> list[tuple[int, int]]:
    """Selects spans as `PairWithSpanMaskingScheme` does; returns first and last of merged spans."""
    starts = [bool(table.word_starts[token]) for token in text]

    def word_end(position: int) -> int:
        position += 1
        while position < len(text) and not starts[position]:
            position += 1
        return position

    budget, mask = math.ceil(len(text) * rate), set[int]()
    anchors = draws.anchors(len(text))
    while len(mask) < budget:
        anchor = next(anchors)
        if anchor in mask:
            continue
        num_words = draws.num_words(anchor, GEOMETRIC)
        begin = anchor
        while begin > 0 and not starts[begin]:
            begin -= 1
        for _ in range(num_words):
            if begin >= len(text):
                break
            end = word_end(begin)
            for position in range(begin, end):
                if len(mask) < budget:
                    mask.add(position)
            begin = end
    spans: list[tuple[int, int]] = []
    for position in sorted(mask):
        if spans and spans[-1][1] + 1 == position:
            spans[-1] = (spans[-1][0], position)
        else:
            spans.append((position, position))
    return spans


def _slow_boundary_targets(
    spans: list[tuple[int, int]], length: int
) -> dict[int, tuple[int, int, int]]:
    """Maps positions of the row to (left, right, offset); [CLS] is position 0 of the row."""
    return {
        position + 1: (first, last + 2, position - first)
        for first, last in spans
        if first > 0 and last < length - 1
        for position in range(first, min(last + 1, first + 15))
    }


@pytest.mark.parametrize(("rate", "word_starts"), [(0.15, 0.75), (0.15, 0.2), (0.7, 0.5)])
def test_spans_and_targets_equal_the_slow_reference(rate: float, word_starts: float) -> None:
    table = random_vocab_arrays(word_start_fraction=word_starts)
    rng = np.random.default_rng(5)
    ids = rng.choice(table.maskable_ids, (150, 128)).astype(np.int32)
    ends = rng.integers(4, 129, 150)
    ids[:, 0], ids[np.arange(150), ends - 1] = CLS, SEP
    attention = (np.arange(128) < ends[:, None]).astype(np.int32)
    keys = example_keys(rng.integers(0, 2**63, 150).astype(np.uint64), np.arange(150))
    config = SpanMasking(mlm_probability=rate)
    fast = mask_tokens(ids, attention, keys, config, 100, table)
    num_targets = 0
    for row in range(150):
        text = ids[row, 1 : ends[row] - 1].tolist()
        spans = _slow_spans(text, table, _KeyedDraws(int(keys[row])), rate)
        expected = [p + 1 for first, last in spans for p in range(first, last + 1)]
        used = fast["masked_lm_weights"][row] == 1
        assert fast["masked_lm_positions"][row][used].tolist() == expected
        targets = _slow_boundary_targets(spans, len(text))
        is_target = fast["span_target_weights"][row] == 1
        found = zip(
            fast["masked_lm_positions"][row][is_target].tolist(),
            fast["span_left_positions"][row][is_target].tolist(),
            fast["span_right_positions"][row][is_target].tolist(),
            fast["span_target_offsets"][row][is_target].tolist(),
            strict=True,
        )
        assert {position: tuple(rest) for position, *rest in found} == targets
        num_targets += len(targets)
    assert num_targets > 500


def test_spans_of_a_million_tokens_of_novels(novel_rows) -> None:
    ids, keys, table = novel_rows
    frequencies = np.bincount(ids[:, 1:-1].ravel(), minlength=table.vocab_size)
    sample = ids[:, 1:-1].ravel()
    out = mask_tokens(
        ids, np.ones_like(ids), keys, SpanMasking(), 20, table, replacement_ids=sample
    )
    num_text = (~table.is_special[ids]).sum(axis=1)
    np.testing.assert_array_equal(out["masked_lm_weights"].sum(axis=1), np.ceil(0.15 * num_text))
    is_selected = np.zeros((len(ids), 130), dtype=bool)  # one more column on either side
    rows, entries = np.nonzero(out["masked_lm_weights"])
    columns = out["masked_lm_positions"][rows, entries]
    is_selected[rows, columns + 1] = True
    firsts = is_selected[:, 1:-1] & ~is_selected[:, :-2]

    # One draw decides what replaces all tokens of a span.
    inputs, original = out["input_ids"][rows, columns], out["masked_lm_ids"][rows, entries]
    span = np.cumsum(firsts[rows, columns])
    is_masked = inputs == table.mask_id
    num_masked = np.bincount(span, is_masked)[1:]
    span_sizes = np.bincount(span)[1:]
    assert ((num_masked == 0) | (num_masked == span_sizes)).all()
    five_sigma = 5 * 0.5 / np.sqrt(len(span_sizes))
    assert (num_masked > 0).mean() == pytest.approx(0.8, abs=five_sigma)
    num_unchanged = np.bincount(span, inputs == original)[1:]
    assert (num_unchanged == span_sizes).mean() == pytest.approx(0.1, abs=five_sigma)

    # Random tokens have the frequencies of the text.
    is_random = (num_masked == 0)[span - 1] & (num_unchanged < span_sizes)[span - 1]
    common = np.argsort(-frequencies)[:5]
    expected = frequencies[common] / frequencies.sum()
    found = (inputs[is_random][:, None] == common).mean(axis=0)
    np.testing.assert_allclose(found, expected, atol=5 * 0.25 / np.sqrt(is_random.sum()))

    # Lengths of merged spans and boundary targets, with independent random numbers.
    draws, slow_sizes, slow_targets = _NumpyDraws(3), [], []
    for row in range(0, len(ids), 8):
        text = ids[row, 1:-1].tolist()
        spans = _slow_spans(text, table, draws, 0.15)
        slow_sizes += [last - first + 1 for first, last in spans]
        slow_targets.append(len(_slow_boundary_targets(spans, len(text))))
    for fast_values, slow_values in (
        (span_sizes, slow_sizes),
        (out["span_target_weights"].sum(axis=1), slow_targets),
    ):
        error = np.std(slow_values) / np.sqrt(len(slow_values))
        assert fast_values.mean() == pytest.approx(np.mean(slow_values), abs=5 * error)
    slow_counts = np.bincount(slow_sizes, minlength=21)[1:21] / len(slow_sizes)
    fast_counts = np.bincount(span_sizes, minlength=21)[1:21] / len(span_sizes)
    np.testing.assert_allclose(fast_counts, slow_counts, atol=5 * 0.5 / np.sqrt(len(slow_sizes)))
    assert out["span_target_offsets"].max() == MAX_SPAN_TARGETS - 1


def test_span_lengths_are_a_truncated_geometric_distribution() -> None:
    probabilities = geometric_probabilities(10, 0.2)
    np.testing.assert_allclose(probabilities, np.array(GEOMETRIC) / sum(GEOMETRIC))
    # Joshi et al. 2020, section 3.1: the mean length is 3.8.
    assert probabilities @ np.arange(1, 11) == pytest.approx(3.8, abs=0.05)


def test_spans_do_not_cross_separators_and_have_no_targets_next_to_them() -> None:
    table = random_vocab_arrays(word_start_fraction=0.0)  # the text between two [SEP] is one word
    ids = np.array([[CLS, 10, 11, SEP, 12, 13, 14, SEP]], dtype=np.int32).repeat(500, axis=0)
    keys = np.arange(500).astype(np.uint64) * np.uint64(7919)
    out = mask_tokens(ids, np.ones_like(ids), keys, SpanMasking(mlm_probability=0.2), 5, table)
    assert out["masked_lm_weights"].sum(axis=1).tolist() == [1.0] * 500
    assert set(out["masked_lm_positions"][:, 0].tolist()) == {1, 4}  # words are cut at their end
    assert not out["span_target_weights"].any()
    assert not out["span_left_positions"].any()


def test_random_tokens_come_from_the_corpus_of_the_builder(tmp_path) -> None:
    documents = [[[7, 7, 8]], [[7, 8, 7]]] * 30
    corpus = PreparedCorpus(write_corpus(tmp_path, documents, num_shards=2))
    table = random_vocab_arrays()
    ids = sample_token_ids(corpus, table)
    assert sorted(ids.tolist()) == [7] * 120 + [8] * 60  # the whole of a small corpus
    masking = SpanMasking(mlm_probability=1.0, mask_replace_prob=0.0, random_replace_prob=1.0)
    builder = BatchBuilder(
        corpus,
        table,
        PretrainingData(corpus="", input_format=SingleSegment(), masking=masking),
        seq_length=64,
        batch_size=300,
        max_predictions_per_seq=64,
        seed=0,
    )
    batch, _ = builder.build_batch(0)
    tokens = batch["input_ids"][~table.is_special[batch["input_ids"]]]
    assert set(tokens.tolist()) == {7, 8}
    assert (tokens == 7).mean() == pytest.approx(2 / 3, abs=0.08)


def test_sample_of_a_large_corpus_is_spread_over_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("bert_jax.data.pretraining.dataset.MAX_SAMPLED_CHUNKS", 50)
    documents = [[[5 + n] * 10] * 80 for n in range(100)]
    corpus = PreparedCorpus(write_corpus(tmp_path, documents, num_shards=3, max_part_tokens=300))
    ids = sample_token_ids(corpus, random_vocab_arrays())
    assert len(ids) == 50 * 256  # of 80,000 tokens
    assert len(set(ids.tolist())) >= 50
