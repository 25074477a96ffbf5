"""Covers FULL-SENTENCES and DOC-SENTENCES: bert_jax/data/pretraining/dataset.py and windows.py."""

from pathlib import Path

import numpy as np
import pytest

from bert_jax.apps.testing.random_corpus import (
    CLS,
    SEP,
    Document,
    random_documents,
    random_vocab_arrays,
    write_corpus,
)
from bert_jax.config.data import DocSentences, FullSentences, PretrainingData
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.batch_builder import BatchBuilder
from bert_jax.data.pretraining.dataset import DocSentencesDataset, FullSentencesDataset
from bert_jax.data.pretraining.rng import epoch_key, example_keys
from bert_jax.data.pretraining.windows import window_offset, window_phase


def _keys(count: int, epoch: int = 0) -> list[int]:
    key = np.full(count, epoch_key(0, epoch), np.uint64)
    return example_keys(key, np.arange(count)).tolist()


def _slow_input(documents: list[Document], offset: int, max_num_tokens: int) -> list[int]:
    """Builds an input sentence by sentence from token `offset` of the documents on."""
    sentences = [
        (sentence, number) for number, document in enumerate(documents) for sentence in document
    ]
    start = first = 0
    while start + len(sentences[first][0]) <= offset:
        start += len(sentences[first][0])
        first += 1
    sentence = sentences[first][0]
    if len(sentence) > max_num_tokens:
        begin = min(offset - start, len(sentence) - max_num_tokens)
        return sentence[begin : begin + max_num_tokens]
    tokens: list[int] = []
    previous_document = sentences[first][1]
    for sentence, document in sentences[first:]:
        separator = [SEP] if document != previous_document else []
        if len(tokens) + len(separator) + len(sentence) > max_num_tokens:
            break
        tokens += [*separator, *sentence]
        previous_document = document
    return tokens


def _documents(seed: int) -> list[Document]:
    documents = random_documents(25, seed=seed, mean_sentences=6)
    documents.insert(7, [[7, 8] * 150, [8]])  # this sentence is longer than an input
    documents.append([[9]])
    return documents


@pytest.mark.parametrize("length", [16, 64, 200])
def test_full_sentences_equal_the_slow_reference(tmp_path: Path, length: int) -> None:
    documents = _documents(length)
    corpus = PreparedCorpus(write_corpus(tmp_path, documents, num_shards=3, max_part_tokens=90))
    dataset = FullSentencesDataset(corpus, length, random_vocab_arrays())
    num_tokens = int(corpus.tokens_per_document.sum())
    mean_sentence = round(num_tokens / corpus.num_sentences)
    window_tokens = max(length - 2 - mean_sentence, (length - 1) // 2)
    assert dataset.num_examples == round(num_tokens / window_tokens)
    num_crossing = 0
    for epoch in range(3):
        phase = window_phase(epoch_key(0, epoch), 0)
        for example, key in enumerate(_keys(dataset.num_examples, epoch)):
            offset = window_offset(num_tokens, example, dataset.num_examples, window_tokens, phase)
            ids = dataset.read(example, 0, key, epoch_key(0, epoch)).tolist()
            assert ids == _slow_input(documents, offset, length - 2)
            assert 1 <= len(ids) <= length - 2
            num_crossing += SEP in ids
    assert num_crossing or length == 16


@pytest.mark.parametrize("length", [16, 64, 200])
def test_doc_sentences_stay_within_their_document(tmp_path: Path, length: int) -> None:
    documents = _documents(length)
    corpus = PreparedCorpus(write_corpus(tmp_path, documents, num_shards=3, max_part_tokens=90))
    dataset = DocSentencesDataset(corpus, length, random_vocab_arrays())
    numbers = dataset.find_documents(np.arange(dataset.num_examples)).tolist()
    for example, key in enumerate(_keys(dataset.num_examples)):
        number = numbers[example]
        num_windows = numbers.count(number)
        num_tokens = int(corpus.tokens_per_document[number])
        mean_sentence = round(num_tokens / len(documents[number]))
        window_tokens = max(length - 2 - mean_sentence, (length - 1) // 2)
        if num_tokens <= length - 2:
            window_tokens = length - 2
        assert num_windows == max(1, round(num_tokens / window_tokens))
        phase = window_phase(epoch_key(0, 0), number)
        index = example - numbers.index(number)
        offset = window_offset(num_tokens, index, num_windows, window_tokens, phase)
        expected = _slow_input([documents[number]], offset, length - 2)
        assert dataset.read(example, number, key, epoch_key(0, 0)).tolist() == expected


def test_full_sentences_read_every_token_about_once_an_epoch(tmp_path: Path) -> None:
    sentences = np.arange(5, 20005).reshape(-1, 8)  # each token id occurs once
    documents = [chunk.tolist() for chunk in np.array_split(sentences, 40)]
    corpus = PreparedCorpus(write_corpus(tmp_path, documents, vocab_size=20005))
    dataset = FullSentencesDataset(corpus, 128, random_vocab_arrays(20005))
    counts = np.zeros(20005)
    for epoch in range(20):
        for example, key in enumerate(_keys(dataset.num_examples, epoch)):
            ids = dataset.read(example, 0, key, epoch_key(0, epoch))
            np.add.at(counts, ids, 1)
    mean_counts = counts[5:].reshape(40, -1).mean(axis=1) / 20
    assert mean_counts[1:-1].min() > 0.8 and mean_counts[1:-1].max() < 1.15


@pytest.mark.parametrize("input_format", [FullSentences(), DocSentences()])
def test_batches_separate_documents_and_mask_no_special_token(
    tmp_path: Path, input_format: FullSentences | DocSentences
) -> None:
    corpus = PreparedCorpus(write_corpus(tmp_path, _documents(0)))
    builder = BatchBuilder(
        corpus,
        random_vocab_arrays(),
        PretrainingData(corpus="", input_format=input_format),
        seq_length=200,
        batch_size=16,
        max_predictions_per_seq=32,
        seed=0,
    )
    batch, position = builder.build_batch(0)
    assert position == 16 and "next_sentence_labels" not in batch
    assert not batch["token_type_ids"].any()
    assert (batch["input_ids"][:, 0] == CLS).all()
    predicted = np.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], axis=1)
    predicted = predicted[batch["masked_lm_weights"] > 0]
    assert len(predicted) and not np.isin(predicted, [CLS, SEP]).any()
    num_separators = (batch["input_ids"] == SEP).sum(axis=1)
    assert (num_separators.max() > 1) == isinstance(input_format, FullSentences)
    # Another epoch has other texts and masks; the same position always has the same ones.
    again, _ = builder.build_batch(0)
    later, _ = builder.build_batch(builder.examples_per_epoch)
    assert all(np.array_equal(batch[name], again[name]) for name in batch)
    assert not np.array_equal(batch["input_ids"], later["input_ids"])
