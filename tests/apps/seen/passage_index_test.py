"""Compares the index of passages with a search in all tokens, exact and with changed tokens."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bert_jax.apps.seen import passage_index
from bert_jax.apps.seen.passage_index import PassageIndex, _align
from bert_jax.apps.testing.random_corpus import random_documents, write_corpus
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.errors import UserError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> PreparedCorpus:
    """Writes 60 documents of few different tokens, so that short texts occur several times."""
    documents = random_documents(60, vocab_size=40, mean_sentences=15, mean_tokens=12)
    folder = tmp_path_factory.mktemp("corpus")
    return PreparedCorpus(write_corpus(folder, documents, num_shards=2, max_part_tokens=128))


@pytest.fixture(scope="module", params=[1 << 28, 1 << 10])
def index(corpus: PreparedCorpus, request, tmp_path_factory) -> Iterator[PassageIndex]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passage_index, "_BLOCK_TOKENS", request.param)
        yield PassageIndex(corpus, tmp_path_factory.mktemp("index"))


def _all_tokens(corpus: PreparedCorpus) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids [T] and the documents [T] of all tokens."""
    parts = [corpus.read(part).ids for part in range(len(corpus.tokens_per_part))]
    documents = np.repeat(np.arange(corpus.num_documents), corpus.tokens_per_document)
    return np.concatenate(parts), documents


@pytest.mark.parametrize("length", [1, 2, 6, 7, 8, 25])
def test_exact_texts_are_found_wherever_they_are(corpus, index, length: int) -> None:
    ids, documents = _all_tokens(corpus)
    rng = np.random.default_rng(length)
    for _ in range(20):
        start = int(rng.integers(len(ids) - length))
        query = ids[start : start + length]
        windows = np.lib.stride_tricks.sliding_window_view(ids, length)
        equal = np.flatnonzero((windows == query).all(axis=1))
        expected = [s for s in equal.tolist() if documents[s] == documents[s + length - 1]]
        assert [each.begin for each in index.find_exact(query)] == expected
        assert all(each.end == each.begin + length for each in index.find_exact(query))


def test_texts_that_are_not_there_are_not_found(index) -> None:
    for query in (np.arange(5, 30), np.array([5, 5, 5, 5, 5, 5, 5, 5]), np.array([39] * 6)):
        assert index.find_exact(query.astype(np.uint16)) == []


def test_changed_texts_are_found_with_their_edit_distance(corpus, index) -> None:
    ids, documents = _all_tokens(corpus)
    rng = np.random.default_rng(3)
    for _ in range(30):
        start = int(rng.integers(len(ids) - 60))
        if documents[start] != documents[start + 59]:
            continue
        query = ids[start : start + 60].copy()
        query[10] = 5 + (query[10] - 4) % 35  # changed
        query = np.delete(query, 25)  # missing
        query = np.insert(query, 45, 39 if query[45] != 39 else 38)  # added
        (passage,) = index.find_similar(query, 0.9)
        assert (passage.begin, passage.end) == (start, start + 60)
        assert passage.similarity == pytest.approx(1 - 3 / 60)
    assert index.find_similar(rng.integers(5, 40, 60).astype(np.uint16), 0.9) == []


def test_the_edit_distance_is_that_of_the_textbook() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        query, tokens = rng.integers(0, 4, 9), rng.integers(0, 4, 25)
        best = min(
            _edit_distance(query, tokens[begin:end])
            for begin in range(26)
            for end in range(begin, 26)
        )
        found = _align(query, tokens, 100)
        assert found.similarity == pytest.approx(1 - best / 9)
        part = tokens[found.begin - 100 : found.end - 100]
        assert _edit_distance(query, part) == best


def _edit_distance(a: np.ndarray, b: np.ndarray) -> int:
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    table[:, 0], table[0] = np.arange(len(a) + 1), np.arange(len(b) + 1)
    for i in range(len(a)):
        for j in range(len(b)):
            changed = table[i, j] + int(a[i] != b[j])
            table[i + 1, j + 1] = min(changed, table[i, j + 1] + 1, table[i + 1, j] + 1)
    return int(table[-1, -1])


def test_an_index_is_made_again_only_for_another_corpus(corpus, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    PassageIndex(corpus, folder)
    before = (folder / "index.json").stat().st_mtime_ns
    again = PassageIndex(corpus, folder)
    assert (folder / "index.json").stat().st_mtime_ns == before
    num_tokens = int(corpus.tokens_per_part.sum())
    assert again.num_bytes == pytest.approx(4 * num_tokens, rel=0.01)
    (folder / "positions-000.npy").write_bytes(b"damaged")
    with pytest.raises(UserError, match="the index cannot be read"):
        PassageIndex(corpus, folder)
