"""Names the files with the vectors of an index, for each kind of model, and opens them.

    dense          vectors.npy         float32 [N, D]
                   graph.usearch       the graph for approximate search, if the index has one
    sparse         lengths.npy         int32 [N], the number of weights of each document
                   token_ids.npy       int32 [W], the tokens, one document after another
                   weights.npy         float32 [W]
    multi_vector   lengths.npy         int32 [N], the number of vectors of each document
                   token_vectors.npy   float32 [T, E], one document after another
    compressed     lengths.npy         as above
                   codec.npz           what decompresses vectors
                   codes.npy           int32 [T], the centroid of each vector
                   residuals.npy       uint8 [T, bytes], 1, 2 or 4 bits for each component

All arrays are memory-mapped; the inverted index of sparse vectors is made in memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_array

from bert_jax.apps.search.compression import CompressedTokenVectors, ResidualCodec
from bert_jax.apps.search.growing_array import open_array
from bert_jax.apps.search.late_interaction import StoredTokenVectors, pool_tokens
from bert_jax.apps.search.nearest import ApproximateNeighbors, Neighbors, exact_neighbors
from bert_jax.apps.search.sparse import SparseVectors
from bert_jax.errors import ConfigError, UserError, check_range
from bert_jax.interop.sentence_folder import EmbeddingKind

VECTORS, GRAPH = "vectors.npy", "graph.usearch"
LENGTHS, TOKEN_IDS, WEIGHTS = "lengths.npy", "token_ids.npy", "weights.npy"
TOKEN_VECTORS = "token_vectors.npy"
CODEC, CODES, RESIDUALS = "codec.npz", "codes.npy", "residuals.npy"
PER_DOCUMENT = (VECTORS, LENGTHS)
"""Files with a row for each document; others have as many as `LENGTHS` adds up to."""


@dataclass(frozen=True, kw_only=True)
class VectorFormat:
    """Says how the vectors of an index are stored.

    Attributes:
      kind: of the model.
      bits: for each component of a compressed vector of a token: 1, 2 or 4; None: not compressed.
      pool_factor: tokens of a document that are pooled into one, see `pool_tokens`; 1 for none.
    """

    kind: EmbeddingKind
    bits: int | None = None
    pool_factor: int = 1

    def __post_init__(self) -> None:
        if self.bits not in (None, 1, 2, 4):
            raise ConfigError(f"--bits is {self.bits}; expected 1, 2 or 4")
        check_range("--pool-factor", self.pool_factor, at_least=1)
        if self.kind != "multi_vector" and (self.bits, self.pool_factor) != (None, 1):
            flag = "--pool-factor" if self.bits is None else "--bits"
            raise ConfigError(f"{flag} is for multi-vector models, this is a {self.kind} one")

    def pool(self, vectors: Any) -> Any:
        """Returns the vectors of documents after the pooling of tokens."""
        if self.pool_factor == 1:
            return vectors
        return [pool_tokens(each, self.pool_factor) for each in vectors]

    def differences(self, other: "VectorFormat") -> str:
        """Describes the vectors of this format, as far as those of the other one differ."""
        parts: list[str] = []
        if self.bits != other.bits:
            parts.append("uncompressed vectors" if self.bits is None else f"{self.bits} bits")
        if self.pool_factor != other.pool_factor:
            parts.append(f"the pool factor {self.pool_factor}")
        return " and ".join(parts)


class StoredVectors(Protocol):
    """Finds documents by the vectors of queries, as the encoder of their kind returns them.

    Attributes:
      num_bytes: size of the vectors on disk.
    """

    num_bytes: int

    def __len__(self) -> int: ...

    def exact(self, queries: Any, top_k: int) -> Neighbors:
        """Returns the documents with the largest scores of all."""
        ...


class DenseVectors:
    """Holds a vector of each document, and the graph for approximate search.

    Attributes:
      matrix: float32 [N, D], memory-mapped.
    """

    def __init__(self, matrix: np.ndarray, folder: Path):
        """Wraps vectors; the graph is opened for the first approximate search."""
        self.matrix, self._folder, self.num_bytes = matrix, folder, matrix.nbytes

    def __len__(self) -> int:
        return len(self.matrix)

    def exact(self, queries: np.ndarray, top_k: int) -> Neighbors:
        """Compares all vectors; see `exact_neighbors`."""
        return exact_neighbors(queries, self.matrix, top_k)

    def approximate(self, queries: np.ndarray, top_k: int) -> Neighbors:
        """Searches the graph; UserError if there is none."""
        return self._graph.search(queries, top_k)

    @cached_property
    def _graph(self) -> ApproximateNeighbors:
        if not (self._folder / GRAPH).is_file():
            raise UserError(
                f"{self._folder} has no graph for approximate search; index the texts with "
                "--approximate, or search exactly"
            )
        return ApproximateNeighbors.load(self._folder / GRAPH)


def in_memory(kind: EmbeddingKind, vectors: Any) -> StoredVectors:
    """Returns the vectors of documents, as an encoder of this kind returns them, for a search."""
    match kind:
        case "dense":
            return DenseVectors(vectors, Path())
        case "sparse":
            return SparseVectors(vectors)
        case "multi_vector":
            arrays = arrays_of(kind, vectors)
            return StoredTokenVectors(arrays[TOKEN_VECTORS], arrays[LENGTHS])


def width_of(kind: EmbeddingKind, vectors: Any) -> int:
    """Returns D, V or E of the vectors of at least one document."""
    return vectors[0].shape[1] if kind == "multi_vector" else vectors.shape[1]


def arrays_of(
    kind: EmbeddingKind, vectors: Any, codec: ResidualCodec | None = None
) -> dict[str, np.ndarray]:
    """Returns the rows that the vectors of documents add to each file.

    Args:
      codec: compresses them.
    """
    if codec is not None:
        arrays = arrays_of(kind, vectors)
        codes, residuals = codec.encode(arrays[TOKEN_VECTORS])
        return {LENGTHS: arrays[LENGTHS], CODES: codes, RESIDUALS: residuals}
    match kind:
        case "dense":
            return {VECTORS: np.asarray(vectors, np.float32)}
        case "sparse":
            return {
                LENGTHS: np.diff(vectors.indptr).astype(np.int32),
                TOKEN_IDS: vectors.indices.astype(np.int32),
                WEIGHTS: vectors.data.astype(np.float32),
            }
        case "multi_vector":
            return {
                LENGTHS: np.array([len(each) for each in vectors], np.int32),
                TOKEN_VECTORS: np.concatenate(vectors).astype(np.float32),
            }


def open_vectors(
    folder: Path, vector_format: VectorFormat, num_documents: int, width: int
) -> StoredVectors:
    """Opens the vectors of an index.

    Raises:
      UserError: a file is missing or damaged, or the files do not belong together.
    """
    kind, bits = vector_format.kind, vector_format.bits
    if kind == "dense":
        arrays = _open(folder, num_documents, {VECTORS: (width,)})
        return DenseVectors(arrays[VECTORS], folder)
    if bits is not None:
        codec = ResidualCodec.load(folder / CODEC, bits, width)
        shapes = {LENGTHS: (), CODES: (), RESIDUALS: (codec.num_bytes(),)}
        arrays = _open(folder, num_documents, shapes)
        return CompressedTokenVectors(codec, arrays[CODES], arrays[RESIDUALS], arrays[LENGTHS])
    if kind == "multi_vector":
        arrays = _open(folder, num_documents, {LENGTHS: (), TOKEN_VECTORS: (width,)})
        return StoredTokenVectors(arrays[TOKEN_VECTORS], arrays[LENGTHS])
    arrays = _open(folder, num_documents, {LENGTHS: (), TOKEN_IDS: (), WEIGHTS: ()})
    offsets = np.concatenate([[0], np.cumsum(arrays[LENGTHS], dtype=np.int64)])
    shape = num_documents, width
    try:
        vectors = csr_array((arrays[WEIGHTS], arrays[TOKEN_IDS], offsets), shape=shape)
        vectors.check_format()  # token ids outside of the vocabulary
    except ValueError as error:
        raise UserError(f"{folder / TOKEN_IDS}: {error}; index the texts again") from None
    return SparseVectors(vectors)


def _open(
    folder: Path, num_documents: int, row_shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    arrays = {name: open_array(folder / name) for name in row_shapes}
    num_rows = num_documents
    if LENGTHS in arrays:
        num_rows = int(arrays[LENGTHS].sum(dtype=np.int64))
    for name, array in arrays.items():
        expected = (num_documents if name in PER_DOCUMENT else num_rows, *row_shapes[name])
        if array.shape != expected:
            raise UserError(
                f"{folder / name} has the shape {list(array.shape)}; expected {list(expected)}, "
                f"for {num_documents:,} documents; index the texts again"
            )
    return arrays
