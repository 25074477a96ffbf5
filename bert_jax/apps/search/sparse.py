"""Ranks documents by the dot products of sparse vectors, through an inverted index.

The index is SciPy's CSR matrix of [tokens, documents]: for each token of the vocabulary, the
documents that have it and their weights. A query reads the rows of its own tokens only. bm25s keeps
the same structure, but sums the rows of a query's words without weights, which queries of SPLADE
have.
"""

from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from bert_jax.apps.search.nearest import (
    NO_ROW,
    Neighbors,
    check_top_k,
    concatenate_neighbors,
    top_scores,
)
from bert_jax.errors import UserError

_SCORES_PER_BLOCK = 2**24


class SparseVectors:
    """Holds the sparse vectors of documents, and finds those with the largest dot products.

    Attributes:
      documents: float32 [N, V].
      num_bytes: size of the weights and their tokens.
    """

    def __init__(self, documents: csr_array):
        """Wraps vectors; the inverted index is made for the first query."""
        self.documents: Any = documents  # the types of SciPy's shapes are incomplete
        self.num_bytes = 8 * int(documents.nnz)  # an int32 and a float32

    def __len__(self) -> int:
        return self.documents.shape[0]

    def exact(self, queries: Any, top_k: int) -> Neighbors:
        """Returns the documents with the largest scores, ties in the order of documents.

        Documents without a token of the query are left out, so a query may have fewer than `top_k`.

        Args:
          queries: SciPy's csr_array, float32 [Q, V].

        Raises:
          ConfigError: `top_k` is above the number of documents.
          UserError: the vocabularies differ.
        """
        check_top_k(top_k, len(self))
        if queries.shape[1] != self.documents.shape[1]:
            raise UserError(
                f"the query vectors have the width {queries.shape[1]}, but the vectors of the "
                f"index have {self.documents.shape[1]}; use the model that the texts were indexed "
                "with"
            )
        size = max(_SCORES_PER_BLOCK // len(self), 1)
        blocks = (queries[start : start + size] for start in range(0, queries.shape[0], size))
        parts = [top_scores((block @ self._inverted).toarray(), top_k) for block in blocks]
        found = concatenate_neighbors(parts, top_k)
        return found._replace(rows=np.where(found.scores > 0, found.rows, NO_ROW))

    @cached_property
    def _inverted(self) -> Any:
        return self.documents.T.tocsr()
