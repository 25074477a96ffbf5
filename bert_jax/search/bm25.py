"""Ranks documents by BM25, the baseline of retrieval without a model, and fuses rankings.

The library bm25s, of the extra [search], computes Lucene's form of BM25 with k1 = 1.5 and b = 0.75.
Words are lowercased runs of two or more letters and digits; English stop words are left out, and
nothing is stemmed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.errors import MissingExtraError
from bert_jax.search.nearest import NO_ROW, Neighbors, check_top_k, top_scores

RANK_CONSTANT = 60
"""The constant of reciprocal rank fusion (Cormack et al. 2009)."""


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
        rows = np.concatenate([np.zeros((0, top_k), np.int64), *(part.rows for part in parts)])
        scores = [np.zeros((0, top_k), np.float32), *(part.scores for part in parts)]
        scores = np.concatenate(scores)
        return Neighbors(np.where(scores > 0, rows, NO_ROW), scores)

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
