"""Finds nearest vectors, exactly or approximately, and documents by BM25; fuses rankings.

Approximate search uses the graph (HNSW) of the library usearch, of the extra [search].

The library bm25s, of the extra [search], computes Lucene's form of BM25 with k1 = 1.5 and b = 0.75.
Words are lowercased runs of two or more letters and digits; English stop words are left out, and
nothing is stemmed.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import ConfigError, MissingExtraError, UserError, check_range

ROWS_PER_BLOCK = 65_536
"""Vectors whose scores are computed at once."""
_QUERIES_PER_BLOCK = 256
NO_ROW = -1
"""Fills the rows of `Neighbors` for a query with fewer results than others."""


class Neighbors(NamedTuple):
    """Holds the best vectors of each query: row numbers int64 and scores float32, both [Q, k].

    The best is first; rows with equal scores are in the order of their numbers. A query with fewer
    than k results has `NO_ROW` and the score 0 after them.
    """

    rows: np.ndarray
    scores: np.ndarray


def exact_neighbors(
    queries_QD: np.ndarray, vectors_ND: np.ndarray, top_k: int, *, block_size: int = ROWS_PER_BLOCK
) -> Neighbors:
    """Computes all dot products, by blocks, and returns the largest of each query.

    `vectors_ND` may be memory-mapped: a block at a time is read.

    Raises:
      ConfigError: `top_k` is above the number of vectors.
      UserError: the widths differ, or a query is not finite.
    """
    check_queries(queries_QD, vectors_ND.shape[1])
    check_top_k(top_k, len(vectors_ND))
    parts = [
        neighbors_by_blocks(
            functools.partial(_dot_products, queries_QD[start : start + _QUERIES_PER_BLOCK]),
            vectors_ND,
            top_k,
            block_size,
        )
        for start in range(0, len(queries_QD), _QUERIES_PER_BLOCK)
    ]
    return concatenate_neighbors(parts, top_k)


def _dot_products(queries_QD: np.ndarray, vectors_ND: np.ndarray) -> np.ndarray:
    return queries_QD @ np.asarray(vectors_ND).T


def neighbors_by_blocks(
    score: Callable[[Any], np.ndarray], vectors: Any, top_k: int, block_size: int
) -> Neighbors:
    """Returns the largest scores of each query, from the scores of a block of rows at a time.

    Args:
      score: maps rows of `vectors` to their scores, float32 [Q, rows].
      vectors: what has a length and slices.
    """
    rows: np.ndarray | None = None
    scores = np.zeros((0, 0), np.float32)
    for start in range(0, len(vectors), block_size):
        block_scores = score(vectors[start : start + block_size])
        block = top_scores(block_scores, min(top_k, block_scores.shape[1]))
        if rows is None:
            rows, scores = block.rows, block.scores
            continue
        rows = np.concatenate([rows, block.rows + start], axis=1)
        scores = np.concatenate([scores, block.scores], axis=1)
        # A stable sort: rows of earlier blocks stay before later ones with the same score.
        order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        rows, scores = np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)
    assert rows is not None  # an index has at least one document
    return Neighbors(rows, scores)


def concatenate_neighbors(parts: Sequence[Neighbors], top_k: int) -> Neighbors:
    """Returns the neighbors of the queries of all parts, [0, top_k] without a part."""
    rows = np.concatenate([np.zeros((0, top_k), np.int64), *(part.rows for part in parts)])
    scores = [np.zeros((0, top_k), np.float32), *(part.scores for part in parts)]
    return Neighbors(rows, np.concatenate(scores))


# Equal scores keep the order of the documents; metrics of retrieval order them by id, as trec_eval
# does.
def top_scores(scores_QN: np.ndarray, top_k: int) -> Neighbors:
    """Returns the columns with the largest scores of each row, ties in the order of columns."""
    rows = np.empty((len(scores_QN), top_k), np.int64)
    for query, scores in enumerate(scores_QN):
        # argpartition would choose arbitrarily among scores that are equal to the smallest one.
        smallest = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
        candidates = np.flatnonzero(scores >= smallest)
        order = np.argsort(-scores[candidates], kind="stable")[:top_k]
        rows[query] = candidates[order]
    return Neighbors(rows, np.take_along_axis(scores_QN, rows, axis=1).astype(np.float32))


class ApproximateNeighbors:
    """Finds neighbors through a graph (HNSW), without computing all dot products.

    It is much faster than exact search for collections of more than about a million vectors, but
    misses some of the nearest ones (its recall is below 1).
    """

    def __init__(self, graph: Any):
        """Wraps a graph; `build` and `load` make one."""
        self._graph = graph

    @classmethod
    def build(cls, vectors_ND: np.ndarray) -> "ApproximateNeighbors":
        """Builds the graph of normalized vectors.

        Raises:
          MissingExtraError: usearch is not installed.
        """
        graph = _usearch_index()(ndim=vectors_ND.shape[1], metric="ip", dtype="f32")
        for start in range(0, len(vectors_ND), ROWS_PER_BLOCK):
            block = np.ascontiguousarray(vectors_ND[start : start + ROWS_PER_BLOCK])
            # In blocks, so that memory-mapped vectors are not read into memory at once.
            graph.add(np.arange(start, start + len(block), dtype=np.uint64), block)
        return cls(graph)

    @classmethod
    def load(cls, path: Path) -> "ApproximateNeighbors":
        """Opens a saved graph, which stays on disk and is memory-mapped.

        Raises:
          UserError: the file is missing or damaged.
          MissingExtraError: usearch is not installed.
        """
        try:
            graph = _usearch_index().restore(str(path), view=True)
        except (RuntimeError, ValueError, OSError) as error:
            raise UserError(f"{path}: not a graph of usearch ({error}); index again") from None
        if graph is None:
            raise UserError(f"{path}: not a graph of usearch; index the texts again")
        return cls(graph)

    def save(self, path: Path) -> None:
        """Writes the graph to a file."""
        self._graph.save(str(path))

    def search(self, queries_QD: np.ndarray, top_k: int) -> Neighbors:
        """Returns the neighbors of each query that the graph finds.

        If the graph finds fewer than `top_k` for a query, all dot products are computed.

        Raises:
          ConfigError: `top_k` is above the number of vectors.
          UserError: the widths differ, or a query is not finite.
        """
        check_queries(queries_QD, self._graph.ndim)
        check_top_k(top_k, len(self._graph))
        # usearch explores at least `expansion_search` candidates; below top_k it would miss some.
        self._graph.expansion_search = max(64, 2 * top_k)
        queries_QD = np.ascontiguousarray(queries_QD, np.float32)
        matches = self._graph.search(queries_QD, top_k)
        # The matches of a single query have no counts, and no keys but those that were found.
        if np.min(getattr(matches, "counts", len(matches.keys))) < top_k:
            matches = self._graph.search(queries_QD, top_k, exact=True)
        shape = (len(queries_QD), -1)
        rows = np.asarray(matches.keys, np.int64).reshape(shape)
        # usearch returns 1 - dot product for the metric "ip".
        scores = (1 - np.asarray(matches.distances, np.float32)).reshape(shape)
        # The order of exact search: by score, and equal scores by row.
        order = np.lexsort((rows, -scores), axis=1)
        return Neighbors(np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1))


def check_top_k(top_k: int, num_documents: int) -> None:
    """Raises a ConfigError unless `top_k` is from 1 to the number of documents."""
    check_range("--top-k", top_k, at_least=1)
    if top_k > num_documents:
        raise ConfigError(
            f"--top-k is {top_k}, but there are {num_documents:,} documents; expected at most "
            "their number"
        )


def check_queries(queries_QD: np.ndarray, width: int) -> None:
    """Raises a UserError unless query vectors are finite and have the width of an index."""
    if queries_QD.ndim != 2 or queries_QD.shape[1] != width:
        raise UserError(
            f"the query vectors have the shape {list(queries_QD.shape)}, but the vectors of the "
            f"index have the width {width}; use the model that the texts were indexed with"
        )
    if not np.isfinite(queries_QD).all():
        raise UserError("a query vector has values that are not finite; check the model")


def _usearch_index() -> Any:
    try:
        from usearch.index import Index
    except ImportError:
        raise MissingExtraError("approximate search needs usearch", "search") from None
    return Index


RANK_CONSTANT = 60
"""The constant of reciprocal rank fusion (Cormack et al. 2009)."""


# Words are not stemmed, so that the numbers differ from Lucene's English analyzer.
class Bm25:
    """Ranks a collection of documents by the words that they share with a query."""

    def __init__(self, documents: Sequence[str]):
        """Counts the words of all documents.

        Raises:
          MissingExtraError: bm25s is not installed.
        """
        self._bm25s: Any = _import_bm25s()
        self._num_documents = len(documents)
        words = self._words(documents)
        # bm25s cannot index a collection without any word; then every score is 0.
        self._ranker = None
        if any(words):
            self._ranker = self._bm25s.BM25()
            self._ranker.index(words, show_progress=False)

    def search(self, queries: Sequence[str], top_k: int) -> Neighbors:
        """Returns the documents with the largest scores, ties in the order of documents.

        Documents without a word of the query are left out, so a query may have fewer than `top_k`.

        Raises:
          ConfigError: `top_k` is above the number of documents.
        """
        check_top_k(top_k, self._num_documents)
        parts = [top_scores(self._scores(words)[None], top_k) for words in self._words(queries)]
        found = concatenate_neighbors(parts, top_k)
        return found._replace(rows=np.where(found.scores > 0, found.rows, NO_ROW))

    def _words(self, texts: Sequence[str]) -> list[list[str]]:
        return self._bm25s.tokenize(
            list(texts), stopwords="en", return_ids=False, show_progress=False
        )

    def _scores(self, words: list[str]) -> np.ndarray:
        if self._ranker is None or not words:
            return np.zeros(self._num_documents, np.float32)
        return self._ranker.get_scores(words)


def fuse_ranks(rankings: Sequence[Neighbors], top_k: int) -> Neighbors:
    """Combines rankings of the same queries by reciprocal rank fusion (Cormack et al. 2009).

    The score of a document is the sum of 1 / (60 + rank) over the rankings that contain it.
    """
    num_queries = len(rankings[0].rows)
    rows = np.full((num_queries, top_k), NO_ROW, np.int64)
    scores = np.zeros((num_queries, top_k), np.float32)
    for query, query_rows in enumerate(zip(*(each.rows for each in rankings), strict=True)):
        totals: dict[int, float] = {}
        for ranking in query_rows:
            for rank, row in enumerate(ranking[ranking != NO_ROW].tolist(), start=1):
                totals[row] = totals.get(row, 0.0) + 1 / (RANK_CONSTANT + rank)
        best = sorted(totals, key=lambda row: (-totals[row], row))[:top_k]
        rows[query, : len(best)] = best
        scores[query, : len(best)] = [totals[row] for row in best]
    return Neighbors(rows, scores)


def _import_bm25s() -> Any:
    try:
        import bm25s
    except ImportError:
        raise MissingExtraError("BM25 needs bm25s", "search") from None
    return bm25s
