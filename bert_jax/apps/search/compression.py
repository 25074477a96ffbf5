"""Compresses the vectors of tokens, and searches them through their centroids.

A vector is the number of its nearest centroid and the rest in 1, 2 or 4 bits for each component, as
in ColBERTv2 (Santhanam et al. 2022, "ColBERTv2", section 3.3). A search is that of PLAID
(Santhanam et al. 2022, "PLAID", section 4): texts with a token near a token of the query are
candidates, the best by their centroids alone are decompressed, and those are scored by MaxSim.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.apps.search.late_interaction import (
    check_token_vectors,
    max_sim_neighbors,
    max_sim_scores,
)
from bert_jax.apps.search.nearest import (
    NO_ROW,
    Neighbors,
    check_top_k,
    concatenate_neighbors,
    top_scores,
)
from bert_jax.errors import UserError
from bert_jax.predict.batches import next_power_of_two
from bert_jax.tasks.metrics.vectors import normalize_vectors

_NUM_ITERATIONS = 4
_PROBES = 4
"""Nearest centroids of each token of a query whose documents are candidates, at first."""
_MIN_DECOMPRESSED, _DECOMPRESSED_PER_RESULT = 256, 4
_CANDIDATES_PER_DECOMPRESSED = 4
"""Candidates that are enough. A small collection has few documents for each centroid, and the best
ones of a query may have none in common with its nearest centroids."""
_PRODUCTS_PER_BLOCK = 2**24


class ResidualCodec:
    """Converts vectors to centroids and packed residuals, and back.

    Attributes:
      centroids: float32 [C, E].
      bits: for each component of a residual: 1, 2 or 4.
    """

    def __init__(
        self, centroids: np.ndarray, cutoffs: np.ndarray, values: np.ndarray, is_unit: bool
    ):
        """Takes what `train` has found.

        Args:
          cutoffs: float32 [2^bits - 1], the limits of the levels of a component.
          values: float32 [2^bits], what a level stands for.
          is_unit: whether decoded vectors are normalized.
        """
        self.centroids, self._cutoffs, self._values = centroids, cutoffs, values
        self._is_unit = is_unit
        self.bits = len(values).bit_length() - 1
        self._shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        levels = (np.arange(256)[:, None] >> self._shifts) & (len(values) - 1)
        self._values_of_byte = values[levels]

    @classmethod
    def train(cls, vectors: np.ndarray, num_tokens: int, bits: int) -> "ResidualCodec":
        """Finds centroids by k-means, and levels as quantiles of the residuals.

        The number of centroids is that of ColBERTv2, 16 times the square root of the number of
        tokens, rounded down to a power of two; at most half of the sample.

        Args:
          vectors: float32 [sample, E], in any order.
          num_tokens: vectors of the whole collection.
        """
        rng = np.random.default_rng(0)
        vectors = vectors[rng.permutation(len(vectors))]
        # Residuals of the vectors that the centroids are fitted to would be too small.
        num_held_out = max(len(vectors) // 20, 1)
        held_out, fitted = vectors[:num_held_out], vectors[num_held_out:]
        fitted = fitted if len(fitted) else held_out
        count = int(max(min(16 * num_tokens**0.5, len(fitted) / 2), 1))
        centroids = _k_means(fitted, 1 << (count.bit_length() - 1))
        residuals = held_out - centroids[nearest_centroids(held_out, centroids)]
        levels = 1 << bits
        is_unit = bool(np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3))
        return cls(
            centroids,
            np.quantile(residuals, np.arange(1, levels) / levels).astype(np.float32),
            np.quantile(residuals, (np.arange(levels) + 0.5) / levels).astype(np.float32),
            is_unit,
        )

    def encode(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the centroids of vectors, int32 [T], and packed residuals, uint8 [T, bytes]."""
        codes = nearest_centroids(vectors, self.centroids)
        levels = np.searchsorted(self._cutoffs, vectors - self.centroids[codes]).astype(np.uint8)
        per_byte = len(self._shifts)
        levels = np.pad(levels, ((0, 0), (0, -levels.shape[1] % per_byte)))
        groups = levels.reshape(len(vectors), levels.shape[1] // per_byte, per_byte)
        return codes, (groups << self._shifts).sum(axis=-1, dtype=np.uint8)

    def decode(self, codes: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """Returns vectors, float32 [T, E]."""
        width = self.centroids.shape[1]
        values = self._values_of_byte[residuals].reshape(len(codes), -1)[:, :width]
        vectors = self.centroids[codes] + values
        return normalize_vectors(vectors) if self._is_unit else vectors

    def num_bytes(self) -> int:
        """Returns the bytes of the packed residual of a vector."""
        return -(-self.centroids.shape[1] // len(self._shifts))

    def save(self, path: Path) -> None:
        """Writes the codec as a .npz file."""
        np.savez(
            path,
            centroids=self.centroids,
            cutoffs=self._cutoffs,
            values=self._values,
            is_unit=self._is_unit,
        )

    @classmethod
    def load(cls, path: Path, bits: int, width: int) -> "ResidualCodec":
        """Reads a codec of `bits` bits for vectors of some width.

        Raises:
          UserError: the file is missing, damaged, or that of another index.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                names = ("centroids", "cutoffs", "values")
                centroids, cutoffs, values = (arrays[name] for name in names)
                is_unit = bool(arrays["is_unit"])
        # zipfile.BadZipFile and zlib.error have no common base with the others.
        except Exception as error:
            raise UserError(f"{path} cannot be read: {error}; index the texts again") from None
        shapes = centroids.shape[1:], cutoffs.shape, values.shape
        expected = (width,), (2**bits - 1,), (2**bits,)
        if shapes != expected:
            raise UserError(
                f"{path} has the shapes {shapes}; expected {expected}, for {bits} bits and the "
                f"width {width}; index the texts again"
            )
        return cls(centroids, cutoffs, values, is_unit)


def nearest_centroids(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Returns the number of the nearest centroid of each vector (Euclidean), int32 [T]."""
    codes = np.zeros(len(vectors), np.int32)
    half_norms = (centroids**2).sum(axis=1) / np.float32(2)
    size = next_power_of_two(max(_PRODUCTS_PER_BLOCK // len(centroids), 1))
    for start in range(0, len(vectors), size):
        block = vectors[start : start + size]
        # Few shapes, because each costs a compilation.
        padding = min(next_power_of_two(len(block)), size) - len(block)
        padded = np.pad(block, ((0, padding), (0, 0)))
        codes[start : start + size] = _nearest(padded, centroids, half_norms)[: len(block)]
    return codes


@jax.jit
def _nearest(vectors: jax.Array, centroids: jax.Array, half_norms: jax.Array) -> jax.Array:
    products = jnp.matmul(vectors, centroids.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.argmax(products - half_norms, axis=1)


def _k_means(vectors: np.ndarray, count: int) -> np.ndarray:
    """Returns `count` centroids after some iterations of Lloyd's algorithm, from random vectors."""
    centroids = vectors[:count].copy()  # the vectors are in random order
    for _ in range(_NUM_ITERATIONS):
        codes = nearest_centroids(vectors, centroids)
        order = np.argsort(codes, kind="stable")
        found, starts, sizes = np.unique(codes[order], return_index=True, return_counts=True)
        sums = np.add.reduceat(vectors[order], starts)
        centroids[found] = sums / sizes[:, None].astype(np.float32)
    return centroids


class CompressedTokenVectors:
    """Holds compressed vectors of the tokens of all documents; the arrays may be memory-mapped.

    Attributes:
      codec: decompresses vectors.
      lengths: int32 [N], the number of vectors of each document.
      width: E.
      num_bytes: size of centroids, codes and residuals.
    """

    def __init__(
        self, codec: ResidualCodec, codes: np.ndarray, residuals: np.ndarray, lengths: np.ndarray
    ):
        """Wraps the arrays: int32 [T], uint8 [T, bytes], int32 [N]."""
        self.codec, self.lengths, self.width = codec, lengths, codec.centroids.shape[1]
        self._codes, self._residuals = codes, residuals
        self.num_bytes = codec.centroids.nbytes + codes.nbytes + residuals.nbytes
        self._offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, documents: slice) -> list[np.ndarray]:
        """Returns the decompressed vectors of some documents, float32 [tokens, E] each."""
        return self._decode(np.arange(len(self))[documents])

    def exact(self, queries: Sequence[np.ndarray], top_k: int) -> Neighbors:
        """Decompresses and scores all documents; see `max_sim_neighbors`."""
        return max_sim_neighbors(queries, self, top_k)

    def approximate(self, queries: Sequence[np.ndarray], top_k: int) -> Neighbors:
        """Scores the candidates of each query, which are most of the best documents.

        Args:
          queries: the vectors of each query, float32 [tokens, E].

        Raises:
          ConfigError: `top_k` is above the number of documents.
          UserError: the widths differ, or a query has no vector, or one that is not finite.
        """
        check_top_k(top_k, len(self))
        check_token_vectors(queries, self.width)
        return concatenate_neighbors([self._search(query, top_k) for query in queries], top_k)

    def _search(self, query: np.ndarray, top_k: int) -> Neighbors:
        scores_MC = query @ self.codec.centroids.T
        limit = max(_MIN_DECOMPRESSED, _DECOMPRESSED_PER_RESULT * top_k)
        rows = self._candidates(scores_MC, limit * _CANDIDATES_PER_DECOMPRESSED)
        if len(rows) > limit:
            # PLAID's centroid interaction: MaxSim with centroids in place of vectors.
            token_scores = scores_MC[:, self._codes[self._tokens(rows)]]
            lengths = self.lengths[rows]
            starts = np.cumsum(lengths) - lengths
            scores = np.maximum.reduceat(token_scores, starts, axis=1).sum(axis=0)
            rows = np.sort(rows[top_scores(scores[None], limit).rows[0]])
        count = min(top_k, len(rows))
        best = top_scores(max_sim_scores([query], self._decode(rows)), count)
        missing = ((0, 0), (0, top_k - count))
        return Neighbors(
            np.pad(rows[best.rows], missing, constant_values=NO_ROW), np.pad(best.scores, missing)
        )

    def _candidates(self, scores_MC: np.ndarray, num_documents: int) -> np.ndarray:
        """Returns at least so many documents that have a token near a token of the query.

        If there are not more, it returns all that have a vector.
        """
        if len(self) <= num_documents:
            return np.flatnonzero(self.lengths)
        num_centroids, probes = scores_MC.shape[1], _PROBES
        documents, starts = self._inverted_lists
        while True:
            probes = min(probes, num_centroids)
            nearest = np.argpartition(-scores_MC, probes - 1, axis=1)[:, :probes]
            lists = [documents[starts[c] : starts[c + 1]] for c in np.unique(nearest)]
            rows = np.unique(np.concatenate(lists))
            if len(rows) >= num_documents or probes == num_centroids:
                return rows
            probes *= 4

    @functools.cached_property
    def _inverted_lists(self) -> tuple[np.ndarray, np.ndarray]:
        """The documents of each centroid, one list after another, and where each list starts."""
        rows = np.repeat(np.arange(len(self)), self.lengths)
        pairs = np.unique(np.asarray(self._codes, np.int64) * len(self) + rows)
        centroids, documents = np.divmod(pairs, len(self))
        return documents, np.searchsorted(centroids, np.arange(len(self.codec.centroids) + 1))

    def _tokens(self, rows: np.ndarray) -> np.ndarray:
        """Returns the numbers of the tokens of documents, one document after another."""
        lengths = self.lengths[rows]
        starts = self._offsets[rows] - (np.cumsum(lengths) - lengths)
        return np.repeat(starts, lengths) + np.arange(lengths.sum())

    def _decode(self, rows: np.ndarray) -> list[np.ndarray]:
        tokens = self._tokens(rows)
        vectors = self.codec.decode(self._codes[tokens], self._residuals[tokens])
        return np.split(vectors, np.cumsum(self.lengths[rows[:-1]]))
