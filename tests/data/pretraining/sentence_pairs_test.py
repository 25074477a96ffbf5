"""Compares sentence pairs with a slow reference, and their statistics with BERT's script."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.apps.testing.random_corpus import (
    Document,
    random_documents,
    random_vocab_arrays,
    write_corpus,
)
from bert_jax.config.data import PairFormat, SentenceOrderPairs, SentencePairs
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.dataset import SentencePairDataset, SingleSegmentDataset
from bert_jax.data.pretraining.rng import ExampleRng, Stream, epoch_key, example_keys, random_bits
from bert_jax.data.pretraining.sentence_pairs import (
    SentencePair,
    collate_pairs,
    collate_single_segments,
    make_pair,
    sample_target_seq_length,
    truncate_seq_pair,
)
from bert_jax.data.pretraining.windows import (
    TextWindow,
    window_offset,
    window_phase,
    windows_per_document,
)


def _keys(count: int, seed: int = 0) -> list[int]:
    keys = np.full(count, epoch_key(seed, 0), dtype=np.uint64)
    return example_keys(keys, np.arange(count)).tolist()


# --- The slow reference: documents as lists of sentences, one token at a time. ---


def _slow_pair(
    documents: list[Document],
    example: int,
    key: int,
    length: int,
    config: PairFormat,
    epoch_key: int,
):
    draws, width = ExampleRng(key), length - 3
    document, slot, sentences, tokens, slots = -1, example, [], 0, 0
    while slot >= 0:
        document += 1
        sentences = documents[document]
        tokens = sum(map(len, sentences))
        slots = max(1, round(tokens / width))
        slot -= slots
    slot += slots

    target = width
    if draws.uniform(Stream.SHORT_SEQ) < config.short_seq_prob:
        target = list(range(2, width + 1))[draws.randint(width - 1, Stream.TARGET_SEQ_LENGTH)]
    phase = ExampleRng(epoch_key).uniform(Stream.WINDOW_OFFSET, document)
    start = _slow_start(tokens, slot, slots, width, phase)
    first, seen = 0, 0
    while seen < start and first < len(sentences) - 1:
        seen += len(sentences[first])
        first += 1
    chunk = _gather(sentences, first, target)

    a_end = 1
    if len(chunk) > 1:
        a_end = list(range(1, len(chunk)))[draws.randint(len(chunk) - 1, Stream.SEGMENT_SPLIT)]
    a = [token for sentence in chunk[:a_end] for token in sentence]
    b = [token for sentence in chunk[a_end:] for token in sentence]
    label = 0
    if isinstance(config, SentenceOrderPairs):
        if len(chunk) > 1 and draws.uniform(Stream.SENTENCE_ORDER) < config.swap_prob:
            return (*_slow_truncate(b, a, width, draws), 1)
        is_random = len(chunk) == 1
    else:
        is_random = draws.uniform(Stream.RANDOM_NEXT) < config.random_next_prob
    if len(chunk) == 1 or is_random:
        label = 1
        other_sentences = [
            (other, sentence)
            for other in range(len(documents))
            for sentence in range(len(documents[other]))
            if other != document
        ]
        other, sentence = other_sentences[
            draws.randint(len(other_sentences), Stream.RANDOM_NEXT_SENTENCE)
        ]
        taken = _gather(documents[other], sentence, max(1, target - len(a)))
        b = [token for sentence in taken for token in sentence]
    return (*_slow_truncate(a, b, width, draws), label)


def _slow_start(tokens: int, slot: int, slots: int, width: int, phase: float) -> int:
    """Divides the document evenly, centers each window in its part, and moves all of them."""
    part = tokens / slots
    center = (slot + 0.5) * part
    play = min(width, tokens / 16 + 2 * abs(part - width))
    start = int(center - width / 2 - play / 2 + phase * play + 1e-9)
    return max(min(start, tokens - width), 0)


def _gather(sentences: Document, first: int, target: int) -> Document:
    chunk: Document = []
    for sentence in sentences[first:]:
        chunk.append(sentence)
        if sum(map(len, chunk)) >= target:
            break
    return chunk


def _slow_truncate(a: list[int], b: list[int], width: int, draws: ExampleRng):
    a, b, removal = list(a), list(b), 0
    while len(a) + len(b) > width:
        longer = a if len(a) > len(b) else b
        heads = draws.bits(Stream.TRUNCATE, removal // 64) >> (removal % 64) & 1
        longer.pop(0 if heads else -1)
        removal += 1
    return a, b


@pytest.mark.parametrize("length", [16, 64, 200])
@pytest.mark.parametrize(
    "config",
    [
        SentencePairs(),
        SentencePairs(random_next_prob=0.1, short_seq_prob=0.7),
        SentenceOrderPairs(),
        SentenceOrderPairs(swap_prob=0.2, short_seq_prob=0.7),
    ],
)
def test_pairs_equal_the_slow_reference(tmp_path: Path, length: int, config: PairFormat) -> None:
    documents = random_documents(25, seed=length, mean_sentences=12)
    documents.append([[7] * 500, [8]])  # one sentence is longer than parts and windows
    documents.append([[9]])
    corpus = PreparedCorpus(write_corpus(tmp_path, documents, num_shards=3, max_part_tokens=90))
    source = SentencePairDataset(corpus, config, length, random_vocab_arrays())
    numbers = source.find_documents(np.arange(source.num_examples)).tolist()
    for epoch in range(3):
        keys = _keys(source.num_examples, seed=epoch)
        for example, (document, key) in enumerate(zip(numbers, keys, strict=True)):
            pair = source.read(example, document, key, epoch_key(epoch, 0))
            a, b, label = _slow_pair(documents, example, key, length, config, epoch_key(epoch, 0))
            assert pair.a.tolist() == a and pair.b.tolist() == b and pair.label == label


def test_single_segments_equal_the_slow_reference(tmp_path: Path) -> None:
    documents = random_documents(25, mean_sentences=12)
    corpus = PreparedCorpus(write_corpus(tmp_path, documents, num_shards=2, max_part_tokens=90))
    source = SingleSegmentDataset(corpus, 64, random_vocab_arrays())
    numbers = source.find_documents(np.arange(source.num_examples))
    lengths = source.seq_lengths(numbers)
    for example, key in enumerate(_keys(source.num_examples)):
        document = int(numbers[example])
        slot = example - int((numbers[:example] != document).sum())
        text = [token for sentence in documents[document] for token in sentence]
        slots = int((numbers == document).sum())
        phase = ExampleRng(epoch_key(0, 0)).uniform(Stream.WINDOW_OFFSET, document)
        start = _slow_start(len(text), slot, slots, 62, phase)
        read = source.read(example, document, key, epoch_key(0, 0))
        assert read.tolist() == text[start : start + 62]
        assert len(read) + 2 == lengths[example]


@given(
    a=st.integers(1, 400), b=st.integers(1, 400), width=st.integers(2, 300), key=st.integers(0, 999)
)
def test_truncation_equals_the_slow_reference(a: int, b: int, width: int, key: int) -> None:
    draws = ExampleRng(_keys(1000)[key])
    first, second = np.arange(a), np.arange(1000, 1000 + b)
    fast = truncate_seq_pair(first, second, width, draws)
    slow = _slow_truncate(first.tolist(), second.tolist(), width, draws)
    assert [side.tolist() for side in fast] == [*slow]


# --- Distributions. ---


def _original_script(
    documents: list[Document],
    width: int,
    short_probability: float,
    rng: random.Random,
    random_next: bool = True,
) -> list[tuple[int, int, int, int]]:
    """Runs BERT's algorithm over documents: (tokens of A, of B, label, sentences of the chunk).

    Without `random_next`, runs that of ALBERT, which exchanges A and B instead.
    """
    found = []
    for number, document in enumerate(documents):
        target = width if rng.random() >= short_probability else rng.randint(2, width)
        chunk: Document = []
        at = 0
        while at < len(document):
            chunk.append(document[at])
            if at == len(document) - 1 or sum(map(len, chunk)) >= target:
                a_end = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                a = sum(map(len, chunk[:a_end]))
                if len(chunk) == 1 or (random_next and rng.random() < 0.5):
                    other = number
                    while other == number:
                        other = rng.randrange(len(documents))
                    b = 0
                    for sentence in documents[other][rng.randrange(len(documents[other])) :]:
                        b += len(sentence)
                        if b >= target - a:
                            break
                    label = 1
                    at -= len(chunk) - a_end
                else:
                    b, label = sum(map(len, chunk[a_end:])), 0
                    if not random_next and rng.random() < 0.5:
                        a, b, label = b, a, 1
                while a + b > width:
                    a, b = (a - 1, b) if a > b else (a, b - 1)
                found.append((a, b, label, len(chunk)))
                chunk = []
            at += 1
    return found


@pytest.mark.parametrize("short_probability", [0.0, 0.1])
def test_pair_statistics_equal_create_pretraining_data(
    tmp_path: Path, short_probability: float
) -> None:
    rng = np.random.default_rng(0)
    documents = [
        [[5] * int(length) for length in rng.integers(1, 40, 300)] for _ in range(60)
    ]  # documents are long, so the shorter last chunk of each is rare
    width = 125
    walk = np.array(
        [
            row
            for seed in range(3)
            for row in _original_script(documents, width, short_probability, random.Random(seed))
        ]
    )
    corpus = PreparedCorpus(write_corpus(tmp_path, documents))
    source = SentencePairDataset(
        corpus, SentencePairs(short_seq_prob=short_probability), width + 3, random_vocab_arrays()
    )
    numbers = source.find_documents(np.arange(source.num_examples)).tolist()
    pairs = [
        source.read(example, document, key, epoch_key(seed, 0))
        for seed in range(3)
        for example, (document, key) in enumerate(
            zip(numbers, _keys(source.num_examples, seed), strict=True)
        )
    ]
    windows = np.array([(len(pair.a), len(pair.b), pair.label) for pair in pairs])
    # BERT's script has one target length for a whole document, so short ones are more frequent.
    tolerance = 0.02 if short_probability == 0 else 0.1
    totals, walk_totals = windows[:, :2].sum(axis=1), walk[:, :2].sum(axis=1)
    assert totals.mean() == pytest.approx(walk_totals.mean(), rel=tolerance)
    assert windows[:, 0].mean() == pytest.approx(walk[:, 0].mean(), rel=tolerance)
    assert windows[:, 1].mean() == pytest.approx(walk[:, 1].mean(), rel=tolerance)
    assert windows[:, 2].mean() == pytest.approx(walk[:, 2].mean(), abs=0.03)
    if short_probability == 0:
        assert (totals == width).mean() == pytest.approx((walk_totals == width).mean(), abs=0.03)


def test_sentence_order_statistics_of_novels_equal_alberts_script(novel_rows, tmp_path) -> None:
    tokens = novel_rows.input_ids[:, 1:-1].reshape(20, -1)  # 20 documents of 50,400 tokens
    full_stop = 119
    documents = []
    for document in tokens:
        ends = np.flatnonzero(document[:-1] == full_stop) + 1
        documents.append([sentence.tolist() for sentence in np.split(document, ends)])
    width = 125
    script = np.array(_original_script(documents, width, 0.0, random.Random(0), False))
    corpus = PreparedCorpus(write_corpus(tmp_path, documents, vocab_size=28996))
    config = SentenceOrderPairs(short_seq_prob=0.0)
    source = SentencePairDataset(corpus, config, width + 3, novel_rows.vocab_arrays)
    numbers = source.find_documents(np.arange(source.num_examples)).tolist()
    pairs = [
        source.read(example, document, key, epoch_key(0, 0))
        for example, (document, key) in enumerate(
            zip(numbers, _keys(source.num_examples), strict=True)
        )
    ]
    found = np.array([(len(pair.a), len(pair.b), pair.label) for pair in pairs])
    assert found[:, :2].sum() > 950_000
    for column, tolerance in ((0, 1.5), (1, 1.5), (2, 0.03)):
        assert found[:, column].mean() == pytest.approx(script[:, column].mean(), abs=tolerance)


def test_pair_rates_over_a_million_tokens(tmp_path: Path) -> None:
    documents = [[[5] * 5] * 400 for _ in range(40)]  # no window has one sentence only
    corpus = PreparedCorpus(write_corpus(tmp_path, documents))
    source = SentencePairDataset(corpus, SentencePairs(), 128, random_vocab_arrays())
    numbers = source.find_documents(np.arange(source.num_examples)).tolist()
    pairs = [
        source.read(example, document, key, epoch_key(epoch, 0))
        for epoch in range(16)
        for example, (document, key) in enumerate(
            zip(numbers, _keys(source.num_examples, epoch), strict=True)
        )
    ]
    totals = np.array([len(pair.a) + len(pair.b) for pair in pairs])
    assert totals.sum() > 1_000_000
    spread = 5 * 0.5 / np.sqrt(len(pairs))
    next_ones = [pair for pair in pairs if pair.label == 0]
    assert len(next_ones) / len(pairs) == pytest.approx(0.5, abs=spread)
    # 10 % are short, except those above 120 tokens; a random B may end early.
    filled = np.array([len(pair.a) + len(pair.b) == 125 for pair in next_ones])
    assert filled.mean() == pytest.approx(0.9 + 0.1 * 5 / 124, abs=spread)


def test_sentence_order_rates_over_a_million_tokens(tmp_path: Path) -> None:
    # Token n of a document has the id 5 + n, so that the order of two segments can be read.
    documents = [[list(range(n, n + 5)) for n in range(5, 2005, 5)] for _ in range(40)]
    corpus = PreparedCorpus(write_corpus(tmp_path, documents, vocab_size=2005))
    config = SentenceOrderPairs(short_seq_prob=0.0)
    source = SentencePairDataset(corpus, config, 128, random_vocab_arrays(2005))
    numbers = source.find_documents(np.arange(source.num_examples)).tolist()
    num_tokens, labels = 0, []
    for epoch in range(16):
        keys = _keys(source.num_examples, epoch)
        for example, (document, key) in enumerate(zip(numbers, keys, strict=True)):
            a, b, label = source.read(example, document, key, epoch_key(epoch, 0))
            first, second = (b, a) if label else (a, b)
            assert first[-1] + 1 == second[0]  # consecutive text, not truncated
            num_tokens += len(a) + len(b)
            labels.append(label)
    assert num_tokens > 1_000_000
    assert np.mean(labels) == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(len(labels)))


def test_sentence_order_of_one_sentence_takes_b_from_another_document(tmp_path: Path) -> None:
    corpus = PreparedCorpus(write_corpus(tmp_path, [[[7] * 40], [[8] * 40]]))
    source = SentencePairDataset(corpus, SentenceOrderPairs(), 32, random_vocab_arrays())
    pairs = [source.read(0, 0, key, epoch_key(0, 0)) for key in _keys(20)]
    assert {(*set(pair.a), *set(pair.b), pair.label) for pair in pairs} == {(7, 8, 1)}


def test_short_target_lengths_are_a_tenth_and_uniform() -> None:
    targets = np.array(
        [sample_target_seq_length(125, SentencePairs(), ExampleRng(key)) for key in _keys(100_000)]
    )
    short = targets[targets < 125]
    assert len(short) / 100_000 == pytest.approx(0.1 * 123 / 124, abs=0.005)
    counts = np.bincount(short, minlength=125)[2:]
    expected = len(short) / len(counts)
    assert counts.min() > 0
    assert ((counts - expected) ** 2 / expected).sum() < 122 + 5 * np.sqrt(2 * 122)


def test_number_of_sentences_of_segment_a_is_uniform() -> None:
    window = TextWindow(np.arange(60), np.arange(6, 61, 6))  # 10 sentences
    config = SentencePairs(random_next_prob=0.0)
    sizes = [
        len(make_pair(window, 60, 60, lambda _: np.zeros(0), config, ExampleRng(key)).a) // 6
        for key in _keys(20_000)
    ]
    counts = np.bincount(sizes, minlength=11)
    assert counts[0] == counts[10] == 0
    expected = 20_000 / 9
    assert ((counts[1:10] - expected) ** 2 / expected).sum() < 8 + 5 * 4


def test_truncation_is_uniform_between_front_and_back() -> None:
    fronts = [
        truncate_seq_pair(np.arange(100), np.arange(10), 90, ExampleRng(key))[0][0]
        for key in _keys(5000)
    ]
    assert np.mean(fronts) == pytest.approx(10, abs=5 * np.sqrt(5 / 5000))
    assert np.var(fronts) == pytest.approx(5, rel=0.15)


def test_each_token_occurs_about_once_in_an_epoch() -> None:
    width, tokens, epochs = 100, 1240, 2000
    slots = int(windows_per_document(np.array([tokens]), width)[0])
    counts = np.zeros(tokens)
    for epoch in range(epochs):
        phase = window_phase(epoch_key(epoch, 0), 0)
        for slot in range(slots):
            start = window_offset(tokens, slot, slots, width, phase)
            counts[start : start + width] += 1
    coverage = counts / epochs
    assert coverage.mean() == pytest.approx(1.0, abs=0.05)
    assert coverage.min() > 0.45 and coverage.max() < 1.55
    np.testing.assert_allclose(coverage[width:-width], slots * width / tokens, atol=0.08)


# --- Sequences and random numbers. ---


def test_collate_pairs_adds_special_tokens_as_in_bert() -> None:
    table = random_vocab_arrays()
    rows = collate_pairs([SentencePair(np.array([7, 8]), np.array([9]), 1)], 8, table)
    np.testing.assert_array_equal(rows["input_ids"], [[2, 7, 8, 3, 9, 3, 0, 0]])
    np.testing.assert_array_equal(rows["token_type_ids"], [[0, 0, 0, 0, 1, 1, 0, 0]])
    np.testing.assert_array_equal(rows["attention_mask"], [[1, 1, 1, 1, 1, 1, 0, 0]])
    np.testing.assert_array_equal(rows["next_sentence_labels"], [1])
    single = collate_single_segments([np.array([7, 8])], 6, table)
    np.testing.assert_array_equal(single["input_ids"], [[2, 7, 8, 3, 0, 0]])
    np.testing.assert_array_equal(single["attention_mask"], [[1, 1, 1, 1, 0, 0]])


def test_python_and_numpy_give_the_same_random_words() -> None:
    keys = _keys(50)
    for stream in Stream:
        fast = random_bits(np.array(keys, dtype=np.uint64), stream, np.arange(50))
        assert [ExampleRng(k).bits(stream, i) for i, k in enumerate(keys)] == fast.tolist()


def test_random_words_are_uniform_and_independent_between_streams() -> None:
    keys = np.array(_keys(200_000), dtype=np.uint64)
    columns = [
        random_bits(keys, stream, np.zeros(1))
        for stream in (Stream.WINDOW_OFFSET, Stream.RANDOM_NEXT)
    ]
    columns += [random_bits(keys, Stream.WINDOW_OFFSET, np.ones(1))]
    columns += [random_bits(keys + np.uint64(0), Stream.WINDOW_OFFSET, np.zeros(1))[::-1]]
    uniform = np.array(columns) / 2.0**64
    assert np.abs(uniform.mean(axis=1) - 0.5).max() < 5 * np.sqrt(1 / 12 / 200_000)
    correlation = np.corrcoef(uniform) - np.eye(4)
    assert np.abs(correlation).max() < 5 / np.sqrt(200_000)
    bits = (columns[0][:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(200_000)
