"""Covers bert_jax/apps/search/nearest.py and bm25.py with slow references."""

import math
from pathlib import Path

import numpy as np
import pytest

from bert_jax.apps.search.nearest import (
    NO_ROW,
    ApproximateNeighbors,
    Bm25,
    Neighbors,
    exact_neighbors,
    fuse_ranks,
)
from bert_jax.errors import ConfigError, UserError

RNG = np.random.default_rng(0)


def unit_vectors(count: int, width: int) -> np.ndarray:
    vectors = RNG.normal(size=(count, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("block_size", [3, 7, 1000])
def test_exact_search_equals_sorting_all_scores(block_size):
    # Small whole numbers, so that products are exact and many scores are equal.
    vectors = RNG.integers(-1, 2, size=(50, 4)).astype(np.float32)
    queries = RNG.integers(-1, 2, size=(300, 4)).astype(np.float32)
    found = exact_neighbors(queries, vectors, 9, block_size=block_size)
    for query, rows, scores in zip(queries, found.rows, found.scores, strict=True):
        expected = sorted(range(50), key=lambda row: (-float(vectors[row] @ query), row))[:9]
        assert rows.tolist() == expected
        np.testing.assert_array_equal(scores, vectors[expected] @ query)


def test_queries_that_do_not_fit_the_vectors():
    vectors = unit_vectors(5, 4)
    with pytest.raises(ConfigError, match=r"--top-k is 6, but there are 5 documents"):
        exact_neighbors(vectors, vectors, 6)
    with pytest.raises(UserError, match=r"shape \[5, 3\].* have the width 4"):
        exact_neighbors(vectors[:, :3], vectors, 1)
    with pytest.raises(UserError, match="not finite"):
        exact_neighbors(np.full((1, 4), np.nan, np.float32), vectors, 1)
    assert exact_neighbors(vectors[:0], vectors, 2).rows.shape == (0, 2)


def test_approximate_search_finds_most_neighbors(tmp_path: Path):
    pytest.importorskip("usearch")
    vectors, queries = unit_vectors(4000, 16), unit_vectors(50, 16)
    ApproximateNeighbors.build(vectors).save(tmp_path / "graph")
    found = ApproximateNeighbors.load(tmp_path / "graph").search(queries, 10)
    exact = exact_neighbors(queries, vectors, 10)
    pairs = zip(found.rows, exact.rows, strict=True)
    recall = np.mean([len({*a.tolist()} & {*b.tolist()}) / 10 for a, b in pairs])
    assert recall > 0.95
    expected = np.einsum("qd,qkd->qk", queries, vectors[found.rows])
    np.testing.assert_allclose(found.scores, expected, atol=1e-5)
    assert (np.diff(found.scores, axis=1) <= 0).all()


class IncompleteGraph:
    """Finds one vector fewer than asked for, unless the search is exact."""

    def __init__(self, graph):
        self.graph, self.ndim = graph, graph.ndim

    def __len__(self) -> int:
        return len(self.graph)

    def search(self, queries, top_k, exact=False):
        return self.graph.search(queries, top_k if exact else top_k - 1, exact=exact)


@pytest.mark.parametrize("num_queries", [1, 3])
def test_graph_that_finds_too_few_is_searched_exactly(tmp_path: Path, num_queries: int):
    pytest.importorskip("usearch")
    vectors, queries = unit_vectors(50, 8), unit_vectors(num_queries, 8)
    ApproximateNeighbors.build(vectors).save(tmp_path / "graph")
    approximate = ApproximateNeighbors.load(tmp_path / "graph")
    approximate._graph = IncompleteGraph(approximate._graph)
    found = approximate.search(queries, 5)
    np.testing.assert_array_equal(found.rows, exact_neighbors(queries, vectors, 5).rows)


def test_damaged_graph_is_a_user_error(tmp_path: Path):
    pytest.importorskip("usearch")
    (tmp_path / "graph").write_bytes(b"not a graph")
    with pytest.raises(UserError, match="not a graph of usearch"):
        ApproximateNeighbors.load(tmp_path / "graph")


DOCUMENTS = ["The red net mends.", "A red sea, a red net", "old man", "sea sea wind"]


def slow_bm25(query: list[str], documents: list[list[str]], k1: float, b: float) -> list[float]:
    """Computes Lucene's BM25 from its formula."""
    mean_length = np.mean([len(words) for words in documents])
    scores = []
    for words in documents:
        score = 0.0
        for word in query:
            frequency = words.count(word)
            num_with_word = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - num_with_word + 0.5) / (num_with_word + 0.5))
            length = 1 - b + b * len(words) / mean_length
            score += idf * frequency / (frequency + k1 * length)
        scores.append(score)
    return scores


def test_bm25_equals_the_formula():
    pytest.importorskip("bm25s")
    words = [["red", "net", "mends"], ["red", "sea", "red", "net"], ["old", "man"]]
    words.append(["sea", "sea", "wind"])
    found = Bm25(DOCUMENTS).search(["Red NET", "the unknown"], 4)
    expected = slow_bm25(["red", "net"], words, k1=1.5, b=0.75)
    order = sorted(range(4), key=lambda row: (-expected[row], row))
    assert found.rows[0].tolist() == [*order[:2], NO_ROW, NO_ROW]
    np.testing.assert_allclose(found.scores[0], np.array(expected)[order], rtol=1e-5)
    assert (found.rows[1] == NO_ROW).all() and not found.scores[1].any()
    assert not Bm25(["the", "a"]).search(["red"], 2).scores.any()  # no words at all


def test_reciprocal_rank_fusion():
    first = Neighbors(np.array([[0, 1, 2]]), np.zeros((1, 3), np.float32))
    second = Neighbors(np.array([[2, 0, 3]]), np.zeros((1, 3), np.float32))
    fused = fuse_ranks([first, second], 3)
    assert fused.rows.tolist() == [[0, 2, 1]]
    expected = [1 / 61 + 1 / 62, 1 / 63 + 1 / 61, 1 / 62]
    np.testing.assert_allclose(fused.scores[0], expected, rtol=1e-6)
    without = Neighbors(np.full((1, 3), NO_ROW), np.zeros((1, 3), np.float32))
    assert fuse_ranks([first, without], 4).rows.tolist() == [[0, 1, 2, NO_ROW]]
