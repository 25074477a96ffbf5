"""Ranks documents by late interaction: MaxSim of the vectors of all tokens (ColBERT).

Documents are padded to few lengths and scored in batches by JAX.
"""

from collections.abc import Sequence
from typing import Protocol

import jax
import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from bert_jax.apps.search.nearest import (
    NO_ROW,
    Neighbors,
    check_top_k,
    concatenate_neighbors,
    neighbors_by_blocks,
)
from bert_jax.errors import UserError
from bert_jax.models.sentence_encoder.multi_vector import max_sim
from bert_jax.predict.batches import MIN_LENGTH, next_power_of_two
from bert_jax.tasks.metrics.vectors import normalize_vectors

_TOKENS_PER_BATCH = 2**15
_QUERY_TOKENS_PER_BATCH = 512
_DOCUMENTS_PER_BLOCK = 4096

_max_sim = jax.jit(max_sim)


class TokenVectors(Protocol):
    """Holds the vectors of the tokens of documents; a slice is a list of float32 [tokens, E]."""

    width: int

    def __len__(self) -> int: ...

    def __getitem__(self, documents: slice) -> list[np.ndarray]: ...


class StoredTokenVectors:
    """Holds the vectors of the tokens of all documents in one array, which may be memory-mapped.

    Attributes:
      vectors: float32 [T, E], the documents one after another.
      lengths: int32 [N], the number of vectors of each document.
      width: E.
      num_bytes: size of the vectors.
    """

    def __init__(self, vectors: np.ndarray, lengths: np.ndarray):
        """Wraps the arrays."""
        self.vectors, self.lengths, self.width = vectors, lengths, vectors.shape[1]
        self.num_bytes = vectors.nbytes
        self._offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, documents: slice) -> list[np.ndarray]:
        """Returns the vectors of some documents, float32 [tokens, E] each."""
        rows = range(len(self))[documents]
        return [self.vectors[self._offsets[row] : self._offsets[row + 1]] for row in rows]

    def exact(self, queries: Sequence[np.ndarray], top_k: int) -> Neighbors:
        """Returns the documents with the largest scores; see `max_sim_neighbors`."""
        return max_sim_neighbors(queries, self, top_k)


def max_sim_neighbors(
    queries: Sequence[np.ndarray], documents: TokenVectors, top_k: int
) -> Neighbors:
    """Scores all documents, by blocks, and returns the best of each query.

    Documents without a vector are left out.

    Args:
      queries: the vectors of each query, float32 [tokens, E].

    Raises:
      ConfigError: `top_k` is above the number of documents.
      UserError: the widths differ, or a query has no vector, or one that is not finite.
    """
    check_top_k(top_k, len(documents))
    check_token_vectors(queries, documents.width)
    if not queries:
        return concatenate_neighbors([], top_k)
    found = neighbors_by_blocks(
        lambda block: max_sim_scores(queries, block), documents, top_k, _DOCUMENTS_PER_BLOCK
    )
    return without_unscored(found)


def without_unscored(found: Neighbors) -> Neighbors:
    """Returns neighbors with `NO_ROW` in place of documents with the score -inf."""
    is_scored = found.scores > -np.inf
    return Neighbors(
        np.where(is_scored, found.rows, NO_ROW), np.where(is_scored, found.scores, 0.0)
    )


def max_sim_scores(queries: Sequence[np.ndarray], documents: Sequence[np.ndarray]) -> np.ndarray:
    """Computes the score of each query with each document, float32 [Q, D].

    It is the sum over the vectors of a query of the largest dot product with a vector of the
    document (Khattab and Zaharia 2020, section 3.3); -inf for a document without vectors.

    Args:
      queries, documents: vectors of texts, float32 [tokens, E]; queries have at least one.
    """
    scores = np.full((len(queries), len(documents)), -np.inf, np.float32)
    longest = _padded_length(max(map(len, queries)))
    num_queries = max(_QUERY_TOKENS_PER_BATCH // longest, 1)
    query_batches = [
        (slice(first, first + num_queries), _pad(queries[first : first + num_queries], longest))
        for first in range(0, len(queries), num_queries)
    ]
    groups: dict[int, list[int]] = {}
    for index, document in enumerate(documents):
        groups.setdefault(_padded_length(len(document)), []).append(index)
    for length, indices in groups.items():
        size = max(_TOKENS_PER_BATCH // length, 1)
        for start in range(0, len(indices), size):
            chosen = indices[start : start + size]
            batch = _pad([documents[index] for index in chosen], length)
            for rows, padded in query_batches:
                found = np.asarray(_max_sim(*padded, *batch))
                size_of_part = len(queries[rows])
                scores[rows, chosen] = found[:size_of_part, : len(chosen)]
    return scores


# Few lengths and numbers of rows, because each new shape costs a compilation.
def _padded_length(length: int) -> int:
    return max(next_power_of_two(length), MIN_LENGTH)


def _pad(texts: Sequence[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (vectors, float32 [rows, length, E]; whether there is a vector, bool)."""
    rows = next_power_of_two(len(texts))
    vectors = np.zeros((rows, length, texts[0].shape[1]), np.float32)
    have = np.zeros((rows, length), bool)
    for row, text in enumerate(texts):
        vectors[row, : len(text)] = text
        have[row, : len(text)] = True
    return vectors, have


def check_token_vectors(queries: Sequence[np.ndarray], width: int) -> None:
    """Raises a UserError unless queries have finite vectors of the width of an index."""
    for query in queries:
        if query.ndim != 2 or query.shape[1] != width or not len(query):
            raise UserError(
                f"the vectors of a query have the shape {list(query.shape)}, but those of the "
                f"index have the width {width}; expected at least one vector of this width: use "
                "the model that the texts were indexed with"
            )
        if not np.isfinite(query).all():
            raise UserError("a query vector has values that are not finite; check the model")


def pool_tokens(vectors: np.ndarray, factor: int) -> np.ndarray:
    """Replaces clusters of the tokens of a document by their normalized means (Clavie et al. 2024).

    The first token, [CLS], stays. The others are clustered by Ward's method over the distances
    1 - cosine, so that one in `factor` remains.

    Args:
      vectors: float32 [tokens, E] of unit length.
      factor: tokens for each cluster; 1 for no pooling.
    """
    rest = vectors[1:]
    num_clusters = max(len(rest) // factor, 1)
    if factor == 1 or num_clusters >= len(rest):
        return vectors
    distances = squareform(np.clip(1 - rest @ rest.T, 0, 2), checks=False)
    tree = hierarchy.linkage(distances, method="ward")
    clusters = hierarchy.fcluster(tree, num_clusters, criterion="maxclust")
    means = [rest[clusters == cluster].mean(0) for cluster in np.unique(clusters)]
    return np.concatenate([vectors[:1], normalize_vectors(np.stack(means))])
