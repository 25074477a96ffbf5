"""Opens an index of texts, and answers queries.

An index is a folder, written by `build.py`:

    index.json        the model, its kind and fingerprint, the width and the number of documents
    documents.jsonl   {"id", "text"} of each document, in the order of the vectors
    offsets.npy       int64 [N + 1]: where each line of documents.jsonl starts, in bytes

and the files of its vectors, which `stored_vectors.py` lists.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from bert_jax.apps.search.compression import CompressedTokenVectors
from bert_jax.apps.search.documents import Document
from bert_jax.apps.search.encoder import TextEncoder
from bert_jax.apps.search.growing_array import open_array
from bert_jax.apps.search.nearest import NO_ROW, Bm25, Neighbors, check_top_k, fuse_ranks
from bert_jax.apps.search.stored_vectors import DenseVectors, VectorFormat, open_vectors
from bert_jax.config.config_lib import from_json
from bert_jax.errors import ConfigError, UserError, describe_folder
from bert_jax.io.json_io import read_json_object
from bert_jax.models.sentence_encoder.config import PoolingMode
from bert_jax.predict.reranker import Reranker

INFO, DOCUMENTS, OFFSETS = "index.json", "documents.jsonl", "offsets.npy"
FORMAT_VERSION = 2
_CANDIDATES_TO_FUSE = 100


@dataclass(frozen=True, kw_only=True)
class IndexInfo:
    """Holds the content of index.json.

    Attributes:
      version: of the format.
      vectors: how they are stored.
      model: the path of the model that embedded the texts.
      fingerprint: of its parameters, pooling and prompts.
      pooling: the pooling that was chosen; None: as in the model.
      width: D, V or E, the width of the vectors.
      num_documents: N.
      digest: of the documents.
    """

    version: int = FORMAT_VERSION
    vectors: VectorFormat
    model: str
    fingerprint: str
    pooling: PoolingMode | None
    width: int
    num_documents: int
    digest: str


class Hit(NamedTuple):
    """Holds a document that was found, its score, and its number in the index."""

    document: Document
    score: float
    row: int


Method = Literal["exact", "approximate", "bm25", "hybrid"]
"""How documents are ranked.

exact         the vectors of all documents: the cosine or dot product of dense vectors, the dot
              product of sparse ones, MaxSim of multi-vector models
approximate   the same, through what finds most of the best documents: a graph of dense vectors, the
              centroids of compressed ones
bm25          the words that query and document share; needs no model
hybrid        the ranks of the vectors and of "bm25", fused (Cormack et al. 2009)

The default is "approximate" for compressed vectors, otherwise "exact"; "hybrid" uses it, too.
"""


# Files and not a database: memory-mapped vectors, texts, and the fingerprint of the model.
class SearchIndex:
    """Finds the documents of an index: `SearchIndex(folder).search(encoder, ["a query"], 10)`.

    Attributes:
      folder: where the index was read from.
      info: the model and the size.
      vectors: those of the documents; the arrays are memory-mapped.
    """

    def __init__(self, folder: str | Path):
        """Opens an index; vectors and texts stay on disk.

        Raises:
          UserError: there is no index, or its files do not belong together.
        """
        self.folder = Path(folder)
        if not (self.folder / INFO).is_file():
            raise UserError(
                f"{folder}: {describe_folder(self.folder)}; expected an index, which `bert-jax "
                "search index MODEL --file FILE --output FOLDER` makes"
            )
        try:
            content = read_json_object(self.folder / INFO)
            self.info: IndexInfo = from_json(IndexInfo, content, INFO)
        except ConfigError as error:
            raise UserError(f"{self.folder / INFO}: {error}; index the texts again") from None
        if self.info.version != FORMAT_VERSION:
            raise UserError(
                f"{self.folder / INFO}: the version of the format is {self.info.version}; expected "
                f"{FORMAT_VERSION}: index the texts again"
            )
        self.vectors = open_vectors(
            self.folder, self.info.vectors, self.info.num_documents, self.info.width
        )
        self._offsets = open_array(self.folder / OFFSETS)
        if self._offsets.shape != (len(self) + 1,):
            raise UserError(
                f"{self.folder / OFFSETS} has the shape {list(self._offsets.shape)}; expected "
                f"[{len(self) + 1}], for {len(self):,} documents; index the texts again"
            )

    def __len__(self) -> int:
        """Returns the number of documents."""
        return self.info.num_documents

    def describe_vectors(self) -> str:
        """Returns the kind of the vectors and their size, such as "vectors of width 384"."""
        info, size = self.info, self.vectors.num_bytes / len(self)
        match info.vectors.kind:
            case "dense":
                text = f"vectors of width {info.width}"
            case "sparse":
                text = f"sparse vectors of width {info.width}"
            case "multi_vector":
                text = f"vectors of width {info.width} for each token"
                if info.vectors.bits is not None:
                    text += f" in {info.vectors.bits} bits"
        return f"{text}, {size:,.0f} bytes a text"

    def documents(self, rows: Sequence[int]) -> list[Document]:
        """Reads the documents with these numbers.

        Raises:
          UserError: the file of the documents is missing or cut off.
        """
        return read_documents_at(self.folder / DOCUMENTS, self._offsets, rows)

    def search(
        self,
        encoder: TextEncoder | None,
        queries: Sequence[str],
        top_k: int = 10,
        method: Method | None = None,
    ) -> list[list[Hit]]:
        """Returns the best documents of each query, the best first.

        "bm25" and sparse models return only documents that share a word or a token with the query,
        so perhaps fewer.

        Args:
          encoder: the model that embedded the documents; "bm25" needs none.

        Raises:
          ConfigError: `top_k` is above the number of documents.
          UserError: the encoder is not the index's, or a query has no text.
        """
        found = self.neighbors(encoder, queries, top_k, method)
        return [
            [
                Hit(document, float(score), row)
                for document, score, row in zip(
                    self.documents(rows.tolist()), scores, rows.tolist(), strict=False
                )
            ]
            for rows, scores in zip(
                (rows[rows != NO_ROW] for rows in found.rows), found.scores, strict=True
            )
        ]

    def neighbors(
        self,
        encoder: TextEncoder | None,
        queries: Sequence[str],
        top_k: int,
        method: Method | None = None,
    ) -> Neighbors:
        """Returns the numbers and scores of the best documents; see `search`."""
        check_top_k(top_k, len(self))
        default: Method = "exact" if self.info.vectors.bits is None else "approximate"
        for query in queries:
            if not query.strip():
                raise UserError("a query has no text; expected words to search for")
        match method or default:
            case "exact":
                return self.vectors.exact(self._encode(encoder, queries), top_k)
            case "approximate":
                if not isinstance(self.vectors, DenseVectors | CompressedTokenVectors):
                    raise UserError(
                        f"{self.folder} has {self.describe_vectors()}, which are searched exactly; "
                        "leave out --method approximate"
                    )
                return self.vectors.approximate(self._encode(encoder, queries), top_k)
            case "bm25":
                return self._bm25.search(queries, top_k)
            case "hybrid":
                # More than `top_k`: a document that both rankings have at place 30 can be among
                # the best of the fused one.
                num_candidates = min(max(top_k, _CANDIDATES_TO_FUSE), len(self))
                rankings = [
                    self.neighbors(encoder, queries, num_candidates, default),
                    self._bm25.search(queries, num_candidates),
                ]
                return fuse_ranks(rankings, top_k)

    def check_encoder(self, encoder: TextEncoder) -> None:
        """Raises a UserError unless the encoder is the one that embedded the documents."""
        # The fingerprint counts, not the path: a model may be copied, or trained further at the
        # same place.
        if encoder.id.fingerprint != self.info.fingerprint:
            raise UserError(
                f"{self.folder} was made with {self.info.model} (fingerprint "
                f"{self.info.fingerprint}), but {encoder.id.model} is another model (fingerprint "
                f"{encoder.id.fingerprint}); search with the model of the index, or index the "
                "texts again"
            )

    def _encode(self, encoder: TextEncoder | None, queries: Sequence[str]) -> Any:
        if encoder is None:
            raise TypeError("encoder is None; expected the model that embedded the documents")
        self.check_encoder(encoder)
        return encoder.encode_queries(queries)

    @cached_property
    def _bm25(self) -> Bm25:
        return Bm25([document.text for document in self.documents(range(len(self)))])


def rerank_hits(
    reranker: Reranker,
    queries: Sequence[str],
    candidates: Sequence[Sequence[Hit]],
    top_k: int,
    on_progress: Callable[[int], object] | None = None,
) -> list[list[Hit]]:
    """Returns the best documents of each query among its candidates, with the reranker's scores.

    The pairs of all queries are scored together, so that batches are full. Equal scores keep the
    order of the candidates.

    Args:
      top_k: number of documents for each query.
      on_progress: called after each batch with the number of pairs that it finished.
    """
    pairs = [
        (query, hit.document.text)
        for query, hits in zip(queries, candidates, strict=True)
        for hit in hits
    ]
    scores = reranker.score_pairs(pairs, on_progress)
    ends = np.cumsum([len(hits) for hits in candidates])
    reranked = []
    for hits, hit_scores in zip(candidates, np.split(scores, ends[:-1]), strict=True):
        order = np.argsort(-hit_scores, kind="stable")[:top_k].tolist()
        reranked.append([hits[i]._replace(score=float(hit_scores[i])) for i in order])
    return reranked


def read_documents_at(path: Path, offsets: np.ndarray, rows: Sequence[int]) -> list[Document]:
    """Reads lines of documents.jsonl by the bytes at which they start.

    Raises:
      UserError: the file is missing or cut off.
    """
    documents = []
    try:
        with path.open("rb") as file:
            for row in rows:
                file.seek(int(offsets[row]))
                line = file.read(int(offsets[row + 1] - offsets[row]))
                record = json.loads(line)
                documents.append(Document(record["id"], record["text"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {error}; index the texts again") from None
    return documents
