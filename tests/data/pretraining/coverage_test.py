"""Tests how much of its documents an epoch reads: windows lie side by side, and move by epoch.

Covers bert_jax/data/pretraining/windows.py and dataset.py; `bench/coverage.py` measures the same on
a corpus.
"""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.coverage import FORMATS, CorpusOfPositions, count_reads
from bert_jax.apps.testing.random_corpus import random_documents, random_vocab_arrays, write_corpus
from bert_jax.config.data import InputFormat, PretrainingData, SentencePairs
from bert_jax.data.pretraining.batch_builder import BatchBuilder
from bert_jax.data.pretraining.rng import epoch_key
from bert_jax.data.pretraining.windows import window_offset, window_phase, windows_per_document

WIDTH = 100


def starts(num_tokens: int, width: int, phase: float) -> list[int]:
    count = int(windows_per_document(np.array([num_tokens]), width)[0])
    return [window_offset(num_tokens, index, count, width, phase) for index in range(count)]


def reads(num_tokens: int, width: int, phase: float) -> np.ndarray:
    """Returns how often the windows of one epoch contain each token of a document."""
    counts = np.zeros(num_tokens, int)
    for start in starts(num_tokens, width, phase):
        counts[start : start + width] += 1
    return counts


@given(
    num_tokens=st.integers(1, 5000),
    width=st.integers(2, 200),
    phase_steps=st.integers(0, 2**20 - 1),
)
def test_windows_lie_side_by_side(num_tokens: int, width: int, phase_steps: int) -> None:
    # Not a phase of 53 bits: its sum with a start may be rounded up to a whole token.
    found = starts(num_tokens, width, phase_steps / 2**20)
    assert min(found) >= 0 and max(found) <= max(num_tokens - width, 0)
    # Only the first and the last window are moved closer to the others, by the ends of the text.
    distance = num_tokens / len(found)
    steps = np.diff(found)
    assert (steps <= math.ceil(distance)).all()
    assert (steps[1:-1] >= math.floor(distance)).all()
    # What is not read: what the windows are too few for, and what the phase cuts off at one end.
    missing = max(0, num_tokens - len(found) * width)
    cut_off = min(width, num_tokens / 16 + 2 * abs(distance - width)) / 2
    num_unread = int((reads(num_tokens, width, phase_steps / 2**20) == 0).sum())
    assert missing <= num_unread <= missing + cut_off + len(found)
    if distance <= width:  # then also without the rounding of each start
        assert num_unread <= cut_off + 1


@pytest.mark.parametrize("num_tokens", [100, 110, 145, 160, 200, 245, 260, 950, 1600, 20_030])
def test_every_token_is_read_in_some_epochs_and_about_once(num_tokens: int) -> None:
    epochs = 400
    counts = sum(
        reads(num_tokens, WIDTH, window_phase(epoch_key(0, epoch), 7)) for epoch in range(epochs)
    )
    mean = np.asarray(counts) / epochs
    count = len(starts(num_tokens, WIDTH, 0.5))
    assert mean.mean() == pytest.approx(count * WIDTH / num_tokens)
    assert mean.min() > 0.2 and mean.max() <= 2.0
    if num_tokens > 20_000:  # away from the ends, every epoch reads a token once
        assert np.abs(mean[WIDTH:-WIDTH] - 1).max() < 0.05
        # Near the ends as often as with starts uniform in the part of each window.
        assert mean[0] == pytest.approx(0.5, abs=0.1)


def test_phases_are_uniform_and_independent_between_documents_and_epochs() -> None:
    phases = np.array(
        [
            [window_phase(epoch_key(3, epoch), document) for document in range(400)]
            for epoch in range(100)
        ]
    )
    assert phases.min() >= 0 and phases.max() < 1
    counts = np.histogram(phases, bins=20, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 19 + 5 * np.sqrt(2 * 19)
    for neighbors in (phases[1:] * phases[:-1], phases[:, 1:] * phases[:, :-1]):
        assert neighbors.mean() == pytest.approx(0.25, abs=5 * 0.22 / np.sqrt(neighbors.size))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> CorpusOfPositions:
    documents = [
        *random_documents(20, mean_sentences=300, mean_tokens=12),
        *random_documents(150, seed=1, mean_sentences=12, mean_tokens=12),
    ]
    folder: Path = tmp_path_factory.mktemp("corpus")
    return CorpusOfPositions(write_corpus(folder, documents, num_shards=2, max_part_tokens=300))


# An upper limit of what an epoch does not read. Whole windows lack up to half a window of each
# document; whole sentences leave gaps where a sentence did not fit; pairs lose what makes them too
# long, the rest of short windows (5 %), and the second half of NotNext windows (25 %).
LIMITS = dict(zip(map(type, FORMATS), (0.42, 0.2, 0.05, 0.05, 0.08, 0.08), strict=True))


@pytest.mark.parametrize("input_format", FORMATS, ids=lambda each: type(each).__name__)
def test_an_epoch_reads_nearly_everything(
    corpus: CorpusOfPositions, input_format: InputFormat
) -> None:
    builder = BatchBuilder(
        corpus,
        random_vocab_arrays(),
        PretrainingData(corpus="", input_format=input_format, masking=None),
        seq_length=128,
        batch_size=1,
        max_predictions_per_seq=1,
        seed=0,
    )
    num_tokens = int(corpus.tokens_per_document.sum())
    counts = np.array([count_reads(builder, epoch, num_tokens)[0] for epoch in range(3)])
    unread = (counts == 0).mean(axis=1)
    assert (unread < LIMITS[type(input_format)]).all(), unread
    # What one epoch did not read, others do: nothing is left out for good.
    assert (counts == 0).all(axis=0).mean() < (0.12 if unread.mean() > 0.2 else 0.02)
    assert (counts.sum(axis=1) <= 1.15 * num_tokens).all()


def test_pairs_of_one_sentence_explain_why_more_than_half_are_random(tmp_path: Path) -> None:
    """Such windows cannot be split, in BERT's script neither, so B is random for all of them."""
    documents = random_documents(60, seed=2, mean_sentences=60, mean_tokens=20)
    corpus = CorpusOfPositions(write_corpus(tmp_path, documents))
    ends = np.cumsum([len(sentence) for document in documents for sentence in document])

    def mean_label(random_next_prob: float) -> tuple[float, int]:
        config = SentencePairs(random_next_prob=random_next_prob)
        builder = BatchBuilder(
            corpus,
            random_vocab_arrays(),
            PretrainingData(corpus="", input_format=config, masking=None),
            seq_length=32,
            batch_size=1,
            max_predictions_per_seq=1,
            seed=0,
        )
        labels = [count_reads(builder, epoch, int(ends[-1]))[1] for epoch in range(4)]
        return float(np.mean(labels)), 4 * builder.examples_per_epoch

    fraction_of_one_sentence, num_pairs = mean_label(0.0)
    assert 0.1 < fraction_of_one_sentence < 0.5
    expected = 0.5 + 0.5 * fraction_of_one_sentence
    assert mean_label(0.5)[0] == pytest.approx(expected, abs=5 * 0.5 / np.sqrt(num_pairs))
