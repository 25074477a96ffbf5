"""Builds and opens an index of texts, and answers queries.

An index is a folder, written by `build.py`:

    index.json        the model, its fingerprint, the width and the number of documents
    vectors.npy       float32 [N, D], memory-mapped; the dot product is the relevance
    documents.jsonl   {"id", "text"} of each document, in the order of the vectors
    offsets.npy       int64 [N + 1]: where each line of documents.jsonl starts, in bytes
    graph.usearch     the graph for approximate search, if the index has one

The files are written to `.NAME.building` next to the index, which gets its name when it is
complete. `progress.json` there has how many vectors are on disk and a digest of the documents.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from tqdm import tqdm

from bert_jax.apps.search.documents import Document
from bert_jax.apps.search.encoder import TextEncoder
from bert_jax.apps.search.nearest import (
    NO_ROW,
    ApproximateNeighbors,
    Bm25,
    Neighbors,
    check_top_k,
    exact_neighbors,
    fuse_ranks,
)
from bert_jax.config.config_lib import from_json, to_json
from bert_jax.errors import ConfigError, UserError, describe_folder
from bert_jax.io.atomic_io import cannot_write_error, check_new_folder, write_json
from bert_jax.io.file_lock import AlreadyLockedError, acquire_lock
from bert_jax.io.json_io import read_json_object
from bert_jax.models.sentence_encoder.config import PoolingMode
from bert_jax.predict.reranker import Reranker

INFO, VECTORS, DOCUMENTS = "index.json", "vectors.npy", "documents.jsonl"
OFFSETS, GRAPH = "offsets.npy", "graph.usearch"
FORMAT_VERSION = 1
_CANDIDATES_TO_FUSE = 100


@dataclass(frozen=True, kw_only=True)
class IndexInfo:
    """Holds the content of index.json.

    Attributes:
      version: of the format.
      model: the path of the model that embedded the texts.
      fingerprint: of its parameters, pooling and prompts.
      pooling: the pooling that was chosen; None: as in the model.
      width: D, the width of the vectors.
      num_documents: N.
      digest: of the documents.
    """

    version: int = FORMAT_VERSION
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


Method = Literal["dense", "approximate", "bm25", "hybrid"]
"""How documents are ranked.

dense         the dot product of the query with all documents; the cosine of unit vectors
approximate   the dot product, through a graph that finds most of the best documents
bm25          the words that query and document share; needs no model
hybrid        the ranks of "dense" and "bm25", fused (Cormack et al. 2009)
"""


# Files and not a database: memory-mapped vectors, texts, and the fingerprint of the model.
class SearchIndex:
    """Finds the documents of an index: `SearchIndex(folder).search(encoder, ["a query"], 10)`.

    Attributes:
      folder: where the index was read from.
      info: the model and the size.
      vectors: float32 [N, D], memory-mapped.
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
        self.vectors = open_array(self.folder / VECTORS)
        self._offsets = open_array(self.folder / OFFSETS)
        expected = (self.info.num_documents, self.info.width)
        if self.vectors.shape != expected or self._offsets.shape != (expected[0] + 1,):
            raise UserError(
                f"{self.folder}: {VECTORS} has the shape {list(self.vectors.shape)} and {OFFSETS} "
                f"{list(self._offsets.shape)}, but {INFO} describes {expected[0]:,} documents of "
                f"width {expected[1]}; index the texts again"
            )

    def __len__(self) -> int:
        """Returns the number of documents."""
        return self.info.num_documents

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
        method: Method = "dense",
    ) -> list[list[Hit]]:
        """Returns the best documents of each query, the best first.

        "bm25" returns only documents that share a word with the query, so perhaps fewer.

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
        method: Method = "dense",
    ) -> Neighbors:
        """Returns the numbers and scores of the best documents; see `search`."""
        check_top_k(top_k, len(self))
        for query in queries:
            if not query.strip():
                raise UserError("a query has no text; expected words to search for")
        match method:
            case "dense":
                return exact_neighbors(self._encode(encoder, queries), self.vectors, top_k)
            case "approximate":
                return self._graph.search(self._encode(encoder, queries), top_k)
            case "bm25":
                return self._bm25.search(queries, top_k)
            case "hybrid":
                # More than `top_k`: a document that both rankings have at place 30 can be among
                # the best of the fused one.
                num_candidates = min(max(top_k, _CANDIDATES_TO_FUSE), len(self))
                rankings = [
                    self.neighbors(encoder, queries, num_candidates, "dense"),
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

    def _encode(self, encoder: TextEncoder | None, queries: Sequence[str]) -> np.ndarray:
        if encoder is None:
            raise TypeError("encoder is None; expected the model that embedded the documents")
        self.check_encoder(encoder)
        return encoder.encode_queries(queries)

    @cached_property
    def _graph(self) -> ApproximateNeighbors:
        if not (self.folder / GRAPH).is_file():
            raise UserError(
                f"{self.folder} has no graph for approximate search; index the texts with "
                "--approximate, or search exactly"
            )
        return ApproximateNeighbors.load(self.folder / GRAPH)

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


def open_array(path: Path) -> np.ndarray:
    """Memory-maps a .npy file.

    Raises:
      UserError: it is missing or damaged.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} cannot be read: {error}; index the texts again") from None


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


_GROUP_SIZE = 512
"""Documents that are embedded together, sorted by length; progress is saved after each group."""
_PROGRESS, _LOCK = "progress.json", "lock"


@dataclass(frozen=True, kw_only=True)
class _Progress:
    """Holds progress.json; with another digest or fingerprint, the build starts again."""

    digest: str
    fingerprint: str
    num_embedded: int = 0


def build_index(
    output: Path,
    documents: Iterable[Document],
    encoder: TextEncoder,
    *,
    approximate: bool = False,
) -> SearchIndex:
    """Embeds documents and writes the index folder `output`.

    If an earlier call with the same documents and model was interrupted, the vectors that it wrote
    are used. A complete index of the same documents and model is opened as it is.

    Args:
      approximate: whether to build the graph for approximate search as well (usearch).

    Raises:
      UserError: `output` has other files or cannot be written, there are no documents, vectors
        have two widths, or another process builds the same index.
    """
    if (output / INFO).is_file():
        return _open_same_index(output, documents, encoder, approximate=approximate)
    check_new_folder(output)
    building = output.with_name(f".{output.name}.building")
    try:
        building.mkdir(parents=True, exist_ok=True)
        with acquire_lock(building / _LOCK):
            (building / GRAPH).unlink(missing_ok=True)  # may belong to other documents
            offsets, digest = _write_documents(building, documents)
            if len(offsets) == 1:
                shutil.rmtree(building)
                raise UserError("there is no text to index; expected at least one document")
            width = _write_vectors(building, offsets, digest, encoder)
            if approximate:
                ApproximateNeighbors.build(open_array(building / VECTORS)).save(building / GRAPH)
            _finish(
                building,
                output,
                IndexInfo(
                    model=encoder.id.model,
                    fingerprint=encoder.id.fingerprint,
                    pooling=encoder.id.pooling,
                    width=width,
                    num_documents=len(offsets) - 1,
                    digest=digest,
                ),
            )
    except AlreadyLockedError:
        raise UserError(
            f"{building} is being written by another process; wait for it, or choose another "
            "--output"
        ) from None
    except OSError as error:
        raise cannot_write_error(output, error) from None
    return SearchIndex(output)


def _open_same_index(
    output: Path, documents: Iterable[Document], encoder: TextEncoder, *, approximate: bool
) -> SearchIndex:
    """Opens a complete index; UserError if it is of other documents or another model."""
    index = SearchIndex(output)
    digest = hashlib.blake2b(digest_size=16)
    for document in documents:
        digest.update(_line(document))
    reason = None
    if index.info.digest != digest.hexdigest():
        reason = "other texts"
    elif index.info.fingerprint != encoder.id.fingerprint:
        reason = "another model, pooling or prompt"
    elif approximate and not (output / GRAPH).is_file():
        reason = "the same texts, but without the graph of --approximate"
    if reason:
        raise UserError(f"{output} is an index of {reason}; choose another --output, or remove it")
    return index


def _finish(building: Path, output: Path, info: IndexInfo) -> None:
    write_json(building / INFO, to_json(info))
    for name in (_PROGRESS, _LOCK):
        (building / name).unlink()
    # The rename is last: a folder with the name of the index is always complete.
    os.replace(building, output)


def _write_documents(building: Path, documents: Iterable[Document]) -> tuple[np.ndarray, str]:
    """Writes all documents; returns the offsets of their lines, int64 [N + 1], and a digest."""
    digest, offsets = hashlib.blake2b(digest_size=16), [0]
    with (building / DOCUMENTS).open("wb") as file:
        for document in documents:
            line = _line(document)
            digest.update(line)
            file.write(line)
            offsets.append(offsets[-1] + len(line))
    offsets = np.array(offsets, np.int64)
    np.save(building / OFFSETS, offsets)
    return offsets, digest.hexdigest()


def _line(document: Document) -> bytes:
    """Returns a document's line of documents.jsonl; offsets count its bytes, not characters."""
    record = {"id": document.id, "text": document.text}
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def _write_vectors(building: Path, offsets: np.ndarray, digest: str, encoder: TextEncoder) -> int:
    """Embeds the documents that have no vector yet; returns the width."""
    start = _Progress(digest=digest, fingerprint=encoder.id.fingerprint)
    progress = _read_progress(building, start)
    num_documents = len(offsets) - 1
    vectors = open_writable(building / VECTORS) if progress.num_embedded else None
    with tqdm(
        desc="embedding",
        total=num_documents,
        initial=progress.num_embedded,
        unit=" texts",
        disable=None,
    ) as bar:
        for rows in _row_groups(progress.num_embedded, num_documents):
            documents = read_documents_at(building / DOCUMENTS, offsets, rows)
            group = encoder.encode_documents([document.text for document in documents])
            if vectors is None:
                vectors = np.lib.format.open_memmap(
                    building / VECTORS, "w+", np.float32, (num_documents, group.shape[1])
                )
            if group.shape[1] != vectors.shape[1]:
                raise UserError(
                    f"{encoder.id.model}: the vectors of documents {rows.start + 1} to {rows.stop} "
                    f"have the width {group.shape[1]}, but those before them {vectors.shape[1]}; "
                    "expected one width in an index"
                )
            vectors[rows.start : rows.stop] = group
            vectors.flush()  # before progress.json says that they are on disk
            write_json(
                building / _PROGRESS,
                to_json(
                    _Progress(
                        digest=digest,
                        fingerprint=encoder.id.fingerprint,
                        num_embedded=rows.stop,
                    )
                ),
            )
            bar.update(len(rows))
    assert vectors is not None  # there is at least one document
    return vectors.shape[1]


def open_writable(path: Path) -> np.memmap:
    """Memory-maps a .npy file for writing into it."""
    return np.lib.format.open_memmap(path, "r+")


def _read_progress(building: Path, start: _Progress) -> _Progress:
    """Returns the progress of an interrupted build of the same index, otherwise `start`."""
    try:
        content = read_json_object(building / _PROGRESS)
        saved: _Progress = from_json(_Progress, content, _PROGRESS)
    except UserError:  # no earlier build, or a damaged file
        return start
    if (saved.digest, saved.fingerprint) != (start.digest, start.fingerprint):
        return start
    return saved if (building / VECTORS).is_file() else start


def _row_groups(start: int, stop: int) -> Iterator[range]:
    for first in range(start, stop, _GROUP_SIZE):
        yield range(first, min(first + _GROUP_SIZE, stop))
