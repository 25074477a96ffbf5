"""Compares T5's denoising with a slow reference and with its law over 10,000 texts of novels.

Covers bert_jax/data/pretraining/denoising.py and examples.py.
"""

import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.apps.testing.random_corpus import random_documents, random_vocab_arrays, write_corpus
from bert_jax.config.data import (
    BartDenoising,
    BertStyleDenoising,
    ConcatenatedDocuments,
    Denoising,
    Masking,
    PrefixLM,
    PretrainingData,
    SingleSegment,
    SpanCorruption,
)
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.batch_builder import BatchBuilder, batch_fields
from bert_jax.data.pretraining.denoising import (
    ConcatenatedDocumentsDataset,
    Denoiser,
    corrupt_spans,
    count_spans,
    draw_noise_mask,
    span_corruption_lengths,
)
from bert_jax.data.pretraining.rng import ExampleRng, epoch_key, example_keys
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.data.pretraining.windows import TextWindow
from bert_jax.errors import ConfigError, UserError
from tests.data.pretraining.conftest import NovelRows

SENTINELS = np.arange(999, 899, -1, dtype=np.int32)


def _vocabulary(num_sentinels: int = 100) -> VocabArrays:
    vocab_arrays = random_vocab_arrays(900)
    return dataclasses.replace(vocab_arrays, sentinel_ids=SENTINELS[:num_sentinels])


@pytest.mark.parametrize(
    ("inputs", "num_tokens", "targets"),
    [(64, 70, 14), (128, 141, 29), (256, 284, 58), (512, 568, 114), (1024, 1137, 229)],
)
def test_lengths_are_those_of_t5(inputs: int, num_tokens: int, targets: int) -> None:
    assert span_corruption_lengths(inputs, SpanCorruption()) == (num_tokens, targets)


def test_short_spans_leave_room_for_their_sentinels() -> None:
    for inputs_length in (16, 128, 512):
        for span_length in (1.0, 1.1, 1.9):
            config = SpanCorruption(noise_density=0.1, mean_noise_span_length=span_length)
            num_tokens, _ = span_corruption_lengths(inputs_length, config)
            num_noise_tokens, num_spans = count_spans(num_tokens, config)
            assert num_tokens - num_noise_tokens + num_spans + 1 <= inputs_length


def test_half_of_the_tokens_as_noise_gives_equal_lengths() -> None:
    half = SpanCorruption(noise_density=0.5)
    for inputs_length in range(16, 600):
        num_tokens, targets_length = span_corruption_lengths(inputs_length, half)
        assert targets_length <= inputs_length
        num_noise_tokens, num_spans = count_spans(num_tokens, half)
        # T5's code subtracts 1 from both lengths, which may leave one position of padding.
        assert num_noise_tokens + num_spans + 1 in (targets_length, targets_length - 1)


def _slow_reference(
    ids: list[int], noise: list[int], others: list[int]
) -> tuple[list[int], list[int]]:
    """Writes inputs and targets span by span, from the lengths of noise and of other spans."""
    source: list[int] = []
    target: list[int] = []
    position = 0
    for span, (num_others, num_noise) in enumerate(zip(others, noise, strict=True)):
        source += [*ids[position : position + num_others], int(SENTINELS[span])]
        position += num_others
        target += [int(SENTINELS[span]), *ids[position : position + num_noise]]
        position += num_noise
    assert position == len(ids)
    return source, target


def _run_lengths(is_noise: np.ndarray) -> tuple[list[int], list[int]]:
    changes = np.flatnonzero(np.diff(is_noise.astype(int))) + 1
    lengths = np.diff(changes, prepend=0, append=len(is_noise)).tolist()
    return lengths[0::2], lengths[1::2]


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 7, 20, 141, 568])
def test_examples_equal_a_slow_reference(num_tokens: int) -> None:
    ids = np.random.default_rng(num_tokens).integers(5, 900, num_tokens)
    for key in range(20):
        is_noise = draw_noise_mask(num_tokens, ExampleRng(key), SpanCorruption())
        source, target = corrupt_spans(ids, ExampleRng(key), SpanCorruption(), SENTINELS)
        if num_tokens == 1:  # T5's code has no noise then
            assert source.tolist() == ids.tolist() and target.tolist() == [999]
            continue
        others, noise = _run_lengths(is_noise)
        assert not is_noise[0] and is_noise[-1]
        assert (sum(noise), len(noise)) == count_spans(num_tokens, SpanCorruption())
        expected = _slow_reference(ids.tolist(), noise, others)
        assert (source.tolist(), target.tolist()) == expected


def test_all_divisions_into_spans_are_equally_likely() -> None:
    # 20 tokens have 3 noise tokens in 1 span; density 0.3 and length 2 give 6 in 3 spans.
    config = SpanCorruption(noise_density=0.3, mean_noise_span_length=2.0)
    masks = [draw_noise_mask(20, ExampleRng(key), config) for key in range(5_000)]
    counts = Counter(tuple(_run_lengths(mask)[1]) for mask in masks)
    num_divisions = math.comb(5, 2)
    assert len(counts) == num_divisions
    expected = 5_000 / num_divisions
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < 27.9  # 0.1 % of chi-square with 9 degrees of freedom
    starts = Counter(_run_lengths(mask)[0][0] for mask in masks)
    for length in range(1, 13):  # the first of 3 parts of 14
        probability = (14 - length - 1) / math.comb(13, 2)
        deviation = math.sqrt(5_000 * probability)
        assert abs(starts[length] - 5_000 * probability) < 4.5 * deviation


def _reference_mask(rng: np.random.Generator, num_tokens: int) -> np.ndarray:
    """Draws a noise mask as T5's code does: by shuffling the first elements of segments."""
    num_noise, num_spans = count_spans(num_tokens, SpanCorruption())

    def segment(num_items: int) -> np.ndarray:
        is_first = np.arange(num_items - 1) < num_spans - 1
        rng.shuffle(is_first)
        return np.bincount(np.cumsum(np.concatenate(([0], is_first))))

    lengths = np.stack((segment(num_tokens - num_noise), segment(num_noise)), axis=1).reshape(-1)
    is_start = np.zeros(num_tokens, np.int64)
    is_start[np.cumsum(lengths)[:-1]] = 1
    return np.cumsum(is_start) % 2 == 1


# The tests above compare texts with a slow reference, and the divisions with their law.
@pytest.mark.slow
def test_ten_thousand_texts_of_novels_have_the_law_of_t5(novel_rows: NovelRows) -> None:
    tokens = novel_rows.input_ids[:, 1:-1].reshape(-1)
    sentinels = np.arange(28_996, 29_096, dtype=np.int32)[::-1]
    vocab_arrays = dataclasses.replace(novel_rows.vocab_arrays, sentinel_ids=sentinels)
    denoiser = Denoiser(SpanCorruption(), 91, 21, vocab_arrays)
    assert denoiser.max_num_tokens == 100
    num_texts, generator = 10_000, np.random.default_rng(0)
    texts = tokens[: num_texts * 100].reshape(num_texts, 100)
    keys = example_keys(np.full(num_texts, epoch_key(3, 1), np.uint64), np.arange(num_texts))
    noise, reference = np.zeros(100), np.zeros(100)
    lengths, reference_lengths = Counter[int](), Counter[int]()
    for text, key in zip(texts, keys.tolist(), strict=True):
        source, target = denoiser.corrupt(TextWindow(text, np.array([100], np.uint32)), key)
        assert (len(source), len(target)) == (91, 21)
        assert source[-1] == target[-1] == vocab_arrays.sep_id
        starts = np.flatnonzero(target > 28_995)
        assert target[starts].tolist() == sentinels[:5].tolist()
        # Each sentinel of the inputs stands for the span that follows it in the targets.
        spans = iter(np.split(target[:-1], starts[1:]))
        parts = np.split(source[:-1], np.flatnonzero(source[:-1] > 28_995) + 1)
        assert len(parts) == 6 and not len(parts[-1])  # the text ends with noise
        joined = [x for part in parts[:-1] for x in (part[:-1], next(spans)[1:])]
        assert np.array_equal(np.concatenate(joined), text)
        mask, other = (
            draw_noise_mask(100, ExampleRng(key), SpanCorruption()),
            _reference_mask(generator, 100),
        )
        noise += mask
        reference += other
        lengths.update(_run_lengths(mask)[1])
        reference_lengths.update(_run_lengths(other)[1])
    assert noise.sum() == reference.sum() == 15 * num_texts
    assert np.abs(noise - reference).max() < 4.5 * math.sqrt(2 * num_texts * 0.2 * 0.8)
    for length in range(1, 12):
        count, expected = lengths[length], reference_lengths[length]
        assert abs(count - expected) < 5 * math.sqrt(count + expected + 1), length


def test_prefix_lm_splits_texts_uniformly() -> None:
    denoiser = Denoiser(PrefixLM(), 11, 12, _vocabulary(0))
    text = TextWindow(np.arange(100, 111, dtype=np.uint16), np.array([11], np.uint32))
    lengths: Counter[int] = Counter()
    for key in range(5000):
        source, target = denoiser.corrupt(text, key)
        assert np.array_equal(np.concatenate((source[:-1], target[:-1])), text.ids)
        lengths[len(source) - 1] += 1
    assert sorted(lengths) == list(range(1, 11))
    assert max(abs(count - 500) for count in lengths.values()) < 4.5 * math.sqrt(500)


def test_bert_style_denoising_predicts_the_whole_text(novel_rows: NovelRows) -> None:
    vocab_arrays = dataclasses.replace(novel_rows.vocab_arrays, sentinel_ids=SENTINELS + 28_000)
    config = BertStyleDenoising(noise_density=0.2, random_token_prob=0.25)
    denoiser = Denoiser(config, 127, 127, vocab_arrays)
    num_sentinels = num_random = 0
    for row, key in zip(novel_rows.input_ids[:1000], novel_rows.keys.tolist(), strict=False):
        ids = row[1:-1]
        source, target = denoiser.corrupt(TextWindow(ids, np.array([126], np.uint32)), key)
        assert np.array_equal(target[:-1], ids) and len(source) == 127
        num_sentinels += int((source == 28_999).sum())
        num_random += int(((source[:-1] != ids) & (source[:-1] != 28_999)).sum())
    assert abs(num_sentinels / 126_000 - 0.15) < 0.005
    assert abs(num_random / 126_000 - 0.05) < 0.003


def _builder(folder: Path, data: PretrainingData, **sizes: int) -> BatchBuilder:
    settings: dict[str, Any] = {"seq_length": 64, "batch_size": 16, "target_length": 16} | sizes
    return BatchBuilder(
        PreparedCorpus(folder), _vocabulary(), data, max_predictions_per_seq=0, seed=0, **settings
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    documents = random_documents(40, vocab_size=900)
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents, max_part_tokens=100)


def test_batches_are_full_and_read_each_token_once(corpus: Path) -> None:
    data = PretrainingData(
        corpus="", input_format=ConcatenatedDocuments(), masking=SpanCorruption()
    )
    builder = _builder(corpus, data)
    dataset = builder.dataset
    assert isinstance(dataset, ConcatenatedDocumentsDataset)
    num_tokens = int(dataset.corpus.tokens_per_part.sum())
    assert builder.examples_per_epoch == round(num_tokens / 70)
    batch, position = builder.build_batch(0)
    assert position == 16 and tuple(batch) == batch_fields(data)
    assert batch["attention_mask"].all()
    assert np.array_equal(batch["decoder_target_weights"].sum(axis=1), np.full(16, 14.0))
    halves = [
        BatchBuilder(
            PreparedCorpus(corpus),
            _vocabulary(),
            data,
            seq_length=64,
            target_length=16,
            batch_size=16,
            max_predictions_per_seq=0,
            seed=0,
            process_index=index,
            process_count=2,
        ).build_batch(0)[0]
        for index in range(2)
    ]
    for name, values in batch.items():
        assert np.array_equal(values, np.concatenate([half[name] for half in halves]))


def test_texts_of_one_document_may_be_shorter(corpus: Path) -> None:
    data = PretrainingData(corpus="", input_format=SingleSegment(), masking=BartDenoising())
    builder = _builder(corpus, data, target_length=64)
    batch, _ = builder.build_batch(0)
    lengths = batch["decoder_target_weights"].sum(axis=1).astype(int)
    assert lengths.max() == 64 and batch["decoder_target_ids"][0, 0] == 2
    ends = batch["decoder_target_ids"][np.arange(16), lengths - 1]
    assert (ends == 3).all()


def test_a_vocabulary_without_sentinels_raises() -> None:
    with pytest.raises(UserError, match=r"no sentinel tokens .* needs 28 .* --sentinels 100"):
        Denoiser(SpanCorruption(), 512, 114, _vocabulary(0))
    with pytest.raises(UserError, match=r"has 100 sentinel .* needs 114 .* --sentinels 114"):
        Denoiser(SpanCorruption(), 2048, 456, _vocabulary())


@pytest.mark.parametrize(
    ("masking", "seq_length", "target_length", "message"),
    [
        (SpanCorruption(), 512, 113, "target_length to at least 114"),
        (SpanCorruption(), 512, 0, "has target_length 0"),
        (SpanCorruption(), 6, 6, "too short for data.masking"),
        (BartDenoising(), 512, 2, "has target_length 2"),
    ],
)
def test_lengths_too_short_for_the_noise_raise(
    masking: Denoising, seq_length: int, target_length: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Denoiser(masking, seq_length, target_length, _vocabulary())


def test_formats_that_do_not_fit_the_noise_raise() -> None:
    with pytest.raises(ConfigError, match=r"expected data.input_format ConcatenatedDocuments or"):
        PretrainingData(corpus="", masking=SpanCorruption())
    with pytest.raises(ConfigError, match=r"expected data.input_format SingleSegment"):
        PretrainingData(corpus="", masking=BartDenoising(), input_format=ConcatenatedDocuments())
    with pytest.raises(ConfigError, match=r"data.masking is Masking; expected SpanCorruption"):
        PretrainingData(corpus="", masking=Masking(), input_format=ConcatenatedDocuments())
    with pytest.raises(ConfigError, match="leaves less than one token between two spans"):
        SpanCorruption(noise_density=0.8, mean_noise_span_length=2.0)
