"""Builds an index of texts, and adds texts to one.

The files are written to `.NAME.building` next to the index, which gets its name when it is
complete. `progress.json` there has how many documents have their vectors on disk.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from bert_jax.apps.search.compression import ResidualCodec
from bert_jax.apps.search.documents import Document
from bert_jax.apps.search.encoder import TextEncoder
from bert_jax.apps.search.growing_array import GrowingArray, open_array
from bert_jax.apps.search.index import (
    DOCUMENTS,
    INFO,
    OFFSETS,
    IndexInfo,
    SearchIndex,
    read_documents_at,
)
from bert_jax.apps.search.nearest import ApproximateNeighbors
from bert_jax.apps.search.stored_vectors import (
    CODEC,
    GRAPH,
    LENGTHS,
    PER_DOCUMENT,
    VECTORS,
    VectorFormat,
    arrays_of,
    width_of,
)
from bert_jax.config.config_lib import from_json, to_json
from bert_jax.errors import ConfigError, UserError
from bert_jax.io.atomic_io import cannot_write_error, check_new_folder, write_json
from bert_jax.io.file_lock import AlreadyLockedError, acquire_lock
from bert_jax.io.json_io import read_json_object

_GROUP_SIZE = 512
"""Documents that are embedded together, sorted by length; progress is saved after each group."""
_SAMPLED_TOKENS = 2**20
"""Vectors from which the codec of compressed ones is trained."""
_PROGRESS, _LOCK = "progress.json", "lock"


@dataclass(frozen=True, kw_only=True)
class _Progress:
    """Holds progress.json; with another digest or fingerprint, the build starts again.

    Attributes:
      digest: of the documents.
      fingerprint: of the model and the format of the vectors.
      width: of the vectors.
      num_embedded: documents whose vectors are on disk.
    """

    digest: str
    fingerprint: str
    width: int = 0
    num_embedded: int = 0


def build_index(
    output: Path,
    documents: Iterable[Document],
    encoder: TextEncoder,
    *,
    approximate: bool = False,
    bits: int | None = None,
    pool_factor: int | None = None,
    append: bool = False,
) -> SearchIndex:
    """Embeds documents and writes the index folder `output`.

    If an earlier call with the same documents and model was interrupted, the vectors that it wrote
    are used. A complete index of the same documents and model is opened as it is.

    Args:
      approximate: whether to build the graph for approximate search as well (usearch).
      bits: for each component of compressed vectors of a multi-vector model: 1, 2 or 4; None: not
        compressed, or with `append`, as in the index.
      pool_factor: tokens of a document that are pooled into one, for multi-vector models; None: 1,
        or with `append`, as in the index.
      append: whether to add documents to the index `output`; those that it has already are left
        out. It stays complete until the new one replaces it.

    Raises:
      ConfigError: `approximate` is for dense vectors, `bits` and `pool_factor` are for those of
        tokens, and the model has others; or they have other values than there are.
      UserError: `output` has other files or cannot be written, there are no documents, vectors
        have two widths, or another process builds the same index.
    """
    if approximate and encoder.kind != "dense":
        raise ConfigError(
            f"{encoder.id.model} is a {encoder.kind.replace('_', '-')} model, and --approximate is "
            "for dense vectors; remove it"
        )
    building = output.with_name(f".{output.name}.building")
    try:
        with _locked(building):
            if (building / INFO).is_file():  # complete, but a kill came before it had its name
                _publish(building, output)
        # Under the lock from here on, so that nobody else replaces the index that is extended.
        with _locked(building):
            previous = SearchIndex(output) if append or (output / INFO).is_file() else None
            if previous is not None and append:
                bits = bits or previous.info.vectors.bits
                pool_factor = pool_factor or previous.info.vectors.pool_factor
            vector_format = VectorFormat(
                kind=encoder.kind, bits=bits, pool_factor=1 if pool_factor is None else pool_factor
            )
            if previous is None:
                check_new_folder(output)
            else:
                _check_same_vectors(previous, encoder, vector_format)
            build = _Build(building, encoder, vector_format)
            return _build(build, output, documents, previous, approximate, append)
    except OSError as error:
        raise cannot_write_error(output, error) from None


def _build(
    build: "_Build",
    output: Path,
    documents: Iterable[Document],
    previous: SearchIndex | None,
    approximate: bool,
    append: bool,
) -> SearchIndex:
    building = build.folder
    if previous is not None and append:
        approximate |= (output / GRAPH).is_file()
        documents = _with_new(previous, documents)
    digest = build.write_documents(documents)
    if not build.num_documents:
        shutil.rmtree(building)
        raise UserError("there is no text to index; expected at least one document")
    if previous is not None:
        is_same = previous.info.digest == digest
        lacks_graph = approximate and not (output / GRAPH).is_file()
        if is_same or not append:
            shutil.rmtree(building)
        if is_same and not lacks_graph:
            return previous
        if is_same or not append:
            graph = "the same texts, but without the graph of --approximate"
            raise UserError(
                f"{output} is an index of {graph if is_same else 'other texts'}; choose another "
                "--output, or remove it; --append adds texts"
            )
    width = build.write_vectors(digest, previous)
    if approximate:
        ApproximateNeighbors.build(open_array(building / VECTORS)).save(building / GRAPH)
    info = IndexInfo(
        vectors=build.vector_format,
        model=build.encoder.id.model,
        fingerprint=build.encoder.id.fingerprint,
        pooling=build.encoder.id.pooling,
        width=width,
        num_documents=build.num_documents,
        digest=digest,
    )
    write_json(building / INFO, to_json(info))
    _publish(building, output)
    return SearchIndex(output)


@contextlib.contextmanager
def _locked(building: Path) -> Generator[None]:
    """Locks the folder of a build, and removes it at the end if it has nothing else."""
    building.mkdir(parents=True, exist_ok=True)
    try:
        with acquire_lock(building / _LOCK):
            try:
                yield
            finally:
                if building.is_dir() and {path.name for path in building.iterdir()} <= {_LOCK}:
                    shutil.rmtree(building)
    except AlreadyLockedError:
        raise UserError(
            f"{building} is being written by another process; wait for it, or choose another "
            "--output"
        ) from None


def _publish(building: Path, output: Path) -> None:
    """Gives a complete index its name, in place of the one that it extends."""
    for name in (_PROGRESS, _LOCK):
        (building / name).unlink(missing_ok=True)
    replaced = output.with_name(f".{output.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if (output / INFO).is_file():
        os.replace(output, replaced)
    # The rename is last: a folder with the name of the index is always complete.
    os.replace(building, output)
    shutil.rmtree(replaced, ignore_errors=True)


def _check_same_vectors(
    index: SearchIndex, encoder: TextEncoder, vector_format: VectorFormat
) -> None:
    reason = None
    if index.info.fingerprint != encoder.id.fingerprint:
        reason = "is an index of another model, pooling or prompt"
    elif found := index.info.vectors.differences(vector_format):
        expected = vector_format.differences(index.info.vectors)
        reason = f"is an index with {found}, not {expected}"
    if reason:
        raise UserError(f"{index.folder} {reason}; choose another --output, or remove it")


def _with_new(index: SearchIndex, documents: Iterable[Document]) -> Iterator[Document]:
    """Yields the documents of an index, then those that it does not have.

    Raises:
      UserError: a document has the id of another one.
    """
    texts: dict[str, bytes] = {}
    for start in range(0, len(index), _GROUP_SIZE):
        rows = range(start, min(start + _GROUP_SIZE, len(index)))
        for document in index.documents(rows):
            texts[document.id] = _digest(document.text)
            yield document
    for document in documents:
        digest = _digest(document.text)
        if texts.get(document.id, digest) != digest:
            raise UserError(
                f"the id {document.id!r} is that of another text in {index.folder}; expected new "
                "ids, or the same text again"
            )
        if document.id not in texts:
            yield document


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


class _Build:
    """Writes the documents and vectors of an index into a folder; continues where it stopped."""

    def __init__(self, folder: Path, encoder: TextEncoder, vector_format: VectorFormat):
        self.folder, self.encoder, self.vector_format = folder, encoder, vector_format
        self._offsets = np.zeros(1, np.int64)

    @property
    def num_documents(self) -> int:
        return len(self._offsets) - 1

    def write_documents(self, documents: Iterable[Document]) -> str:
        """Writes all documents and where their lines start; returns a digest."""
        digest, offsets = hashlib.blake2b(digest_size=16), [0]
        with (self.folder / DOCUMENTS).open("wb") as file:
            for document in documents:
                record = {"id": document.id, "text": document.text}
                line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
                digest.update(line)
                file.write(line)
                offsets.append(offsets[-1] + len(line))  # of bytes, not of characters
        self._offsets = np.array(offsets, np.int64)
        np.save(self.folder / OFFSETS, self._offsets)
        return digest.hexdigest()

    def write_vectors(self, digest: str, previous: SearchIndex | None) -> int:
        """Embeds the documents that have no vector yet; returns the width."""
        fingerprint = f"{self.encoder.id.fingerprint} {to_json(self.vector_format)}"
        start = _Progress(digest=digest, fingerprint=fingerprint)
        progress = self._read_progress(start)
        if previous is not None and progress.num_embedded < len(previous):
            for path in previous.folder.iterdir():
                if path.name not in (INFO, DOCUMENTS, OFFSETS, GRAPH):
                    shutil.copyfile(path, self.folder / path.name)
            progress = self._save_progress(start, previous.info.width, len(previous))
        if not progress.num_embedded:
            for path in self.folder.iterdir():  # files of a build with another model
                if path.name not in (DOCUMENTS, OFFSETS, _LOCK):
                    path.unlink()
        with tqdm(
            desc="embedding",
            total=self.num_documents,
            initial=progress.num_embedded,
            unit=" texts",
            disable=None,
        ) as bar:
            return self._embed(progress, bar)

    def _embed(self, progress: _Progress, bar: "tqdm[Any]") -> int:
        kind, width, codec = self.encoder.kind, progress.width, None
        if self.vector_format.bits is not None:
            codec = self._codec(self.vector_format.bits, progress)
        with contextlib.closing(_VectorFiles(self.folder, progress.num_embedded)) as files:
            for start in range(progress.num_embedded, self.num_documents, _GROUP_SIZE):
                rows = range(start, min(start + _GROUP_SIZE, self.num_documents))
                group = self._encode(rows)
                width = width or width_of(kind, group)
                if width_of(kind, group) != width:
                    raise UserError(
                        f"{self.encoder.id.model}: the vectors of documents {rows.start + 1} to "
                        f"{rows.stop} have the width {width_of(kind, group)}, but those before "
                        f"them {width}; expected one width in an index"
                    )
                files.append(arrays_of(kind, group, codec))
                progress = self._save_progress(progress, width, rows.stop)
                bar.update(len(rows))
        return width

    def _encode(self, rows: Sequence[int]) -> Any:
        documents = read_documents_at(self.folder / DOCUMENTS, self._offsets, rows)
        vectors = self.encoder.encode_documents([document.text for document in documents])
        return self.vector_format.pool(vectors)

    def _codec(self, bits: int, progress: _Progress) -> ResidualCodec:
        """Returns the codec of the vectors that there are, or one trained on a sample of texts."""
        path = self.folder / CODEC
        if progress.num_embedded:
            return ResidualCodec.load(path, bits, progress.width)
        order = np.random.default_rng(0).permutation(self.num_documents)
        sample: list[np.ndarray] = []
        num_truncated = self.encoder.num_truncated
        for start in range(0, self.num_documents, _GROUP_SIZE):
            sample += self._encode(np.sort(order[start : start + _GROUP_SIZE]).tolist())
            if sum(map(len, sample)) >= _SAMPLED_TOKENS:
                break
        self.encoder.num_truncated = num_truncated  # these texts are embedded again
        vectors = np.concatenate(sample)
        num_tokens = len(vectors) * self.num_documents // len(sample)
        codec = ResidualCodec.train(vectors, num_tokens, bits)
        codec.save(path)
        return codec

    def _save_progress(self, progress: _Progress, width: int, num_embedded: int) -> _Progress:
        saved = dataclasses.replace(progress, width=width, num_embedded=num_embedded)
        write_json(self.folder / _PROGRESS, to_json(saved))
        return saved

    def _read_progress(self, start: _Progress) -> _Progress:
        """Returns the progress of an interrupted build of the same index, otherwise `start`."""
        try:
            content = read_json_object(self.folder / _PROGRESS)
            saved: _Progress = from_json(_Progress, content, _PROGRESS)
        except UserError:  # no earlier build, or a damaged file
            return start
        is_same = (saved.digest, saved.fingerprint) == (start.digest, start.fingerprint)
        return saved if is_same else start


class _VectorFiles:
    """Appends to the files of the vectors, of which the first documents are complete."""

    def __init__(self, building: Path, num_documents: int):
        self._building, self._num_documents, self._num_rows = building, num_documents, 0
        if num_documents and (building / LENGTHS).is_file():
            lengths = open_array(building / LENGTHS)[:num_documents]
            self._num_rows = int(lengths.sum(dtype=np.int64))
        self._files: dict[str, GrowingArray] = {}

    def append(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes the rows of a group of documents, which are complete on disk afterwards."""
        for name, rows in arrays.items():
            if name not in self._files:
                count = self._num_documents if name in PER_DOCUMENT else self._num_rows
                self._files[name] = GrowingArray(self._building / name, count, rows)
            self._files[name].append(rows)
            self._files[name].flush()

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()
