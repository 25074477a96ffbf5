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
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

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
    GRAPH,
    LENGTHS,
    PER_DOCUMENT,
    VECTORS,
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
_PROGRESS, _LOCK = "progress.json", "lock"


@dataclass(frozen=True, kw_only=True)
class _Progress:
    """Holds progress.json; with another digest or fingerprint, the build starts again."""

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
    append: bool = False,
) -> SearchIndex:
    """Embeds documents and writes the index folder `output`.

    If an earlier call with the same documents and model was interrupted, the vectors that it wrote
    are used. A complete index of the same documents and model is opened as it is.

    Args:
      approximate: whether to build the graph for approximate search as well (usearch).
      append: whether to add documents to the index `output`; those that it has already are left
        out. It stays complete until the new one replaces it.

    Raises:
      ConfigError: `approximate` is for dense vectors, and the model has others.
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
        if (building / INFO).is_file():
            with _locked(building):  # complete, but a kill came before it had its name
                _publish(building, output)
        previous = SearchIndex(output) if append or (output / INFO).is_file() else None
        if previous is None:
            check_new_folder(output)
        else:
            _check_same_encoder(previous, encoder)
        with _locked(building):
            return _build(building, output, documents, encoder, previous, approximate, append)
    except OSError as error:
        raise cannot_write_error(output, error) from None


def _build(
    building: Path,
    output: Path,
    documents: Iterable[Document],
    encoder: TextEncoder,
    previous: SearchIndex | None,
    approximate: bool,
    append: bool,
) -> SearchIndex:
    if previous is not None and append:
        approximate |= (output / GRAPH).is_file()
        documents = _with_new(previous, documents)
    offsets, digest = _write_documents(building, documents)
    if len(offsets) == 1:
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
    start = _Progress(digest=digest, fingerprint=encoder.id.fingerprint)
    progress = _read_progress(building, start)
    if previous is not None and progress.num_embedded < len(previous):
        progress = _copy_vectors(previous, building, start)
    if not progress.num_embedded:
        for path in building.iterdir():  # files of a build with another model
            if path.name not in (DOCUMENTS, OFFSETS, _LOCK):
                path.unlink()
    width = _write_vectors(building, offsets, progress, encoder)
    if approximate:
        ApproximateNeighbors.build(open_array(building / VECTORS)).save(building / GRAPH)
    info = IndexInfo(
        kind=encoder.kind,
        model=encoder.id.model,
        fingerprint=encoder.id.fingerprint,
        pooling=encoder.id.pooling,
        width=width,
        num_documents=len(offsets) - 1,
        digest=digest,
    )
    write_json(building / INFO, to_json(info))
    _publish(building, output)
    return SearchIndex(output)


@contextlib.contextmanager
def _locked(building: Path) -> Generator[None]:
    building.mkdir(parents=True, exist_ok=True)
    try:
        with acquire_lock(building / _LOCK):
            yield
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


def _check_same_encoder(index: SearchIndex, encoder: TextEncoder) -> None:
    if index.info.fingerprint != encoder.id.fingerprint:
        raise UserError(
            f"{index.folder} is an index of another model, pooling or prompt; choose another "
            "--output, or remove it"
        )


def _with_new(index: SearchIndex, documents: Iterable[Document]) -> Iterator[Document]:
    """Yields the documents of an index, then those that it does not have.

    Raises:
      UserError: a document has the id of another one.
    """
    texts: dict[str, bytes] = {}
    for rows in _row_groups(0, len(index)):
        for document in index.documents(rows):
            texts[document.id] = hashlib.blake2b(document.text.encode(), digest_size=16).digest()
            yield document
    for document in documents:
        digest = hashlib.blake2b(document.text.encode(), digest_size=16).digest()
        if texts.get(document.id, digest) != digest:
            raise UserError(
                f"the id {document.id!r} is that of another text in {index.folder}; expected new "
                "ids, or the same text again"
            )
        if document.id not in texts:
            yield document


def _copy_vectors(index: SearchIndex, building: Path, start: _Progress) -> _Progress:
    """Copies the vectors of an index; returns the progress that has them."""
    for path in index.folder.iterdir():
        if path.name not in (INFO, DOCUMENTS, OFFSETS, GRAPH):
            shutil.copyfile(path, building / path.name)
    return _save_progress(building, start, index.info.width, len(index))


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


def _write_vectors(
    building: Path, offsets: np.ndarray, progress: _Progress, encoder: TextEncoder
) -> int:
    """Embeds the documents that have no vector yet; returns the width."""
    num_documents, width = len(offsets) - 1, progress.width
    with (
        contextlib.closing(_VectorFiles(building, progress.num_embedded)) as files,
        tqdm(
            desc="embedding",
            total=num_documents,
            initial=progress.num_embedded,
            unit=" texts",
            disable=None,
        ) as bar,
    ):
        for rows in _row_groups(progress.num_embedded, num_documents):
            documents = read_documents_at(building / DOCUMENTS, offsets, rows)
            group = encoder.encode_documents([document.text for document in documents])
            width = width or width_of(encoder.kind, group)
            if width_of(encoder.kind, group) != width:
                raise UserError(
                    f"{encoder.id.model}: the vectors of documents {rows.start + 1} to {rows.stop} "
                    f"have the width {width_of(encoder.kind, group)}, but those before them "
                    f"{width}; expected one width in an index"
                )
            files.append(arrays_of(encoder.kind, group))
            progress = _save_progress(building, progress, width, rows.stop)
            bar.update(len(rows))
    return width


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


def _save_progress(building: Path, progress: _Progress, width: int, num_embedded: int) -> _Progress:
    saved = dataclasses.replace(progress, width=width, num_embedded=num_embedded)
    write_json(building / _PROGRESS, to_json(saved))
    return saved


def _read_progress(building: Path, start: _Progress) -> _Progress:
    """Returns the progress of an interrupted build of the same index, otherwise `start`."""
    try:
        content = read_json_object(building / _PROGRESS)
        saved: _Progress = from_json(_Progress, content, _PROGRESS)
    except UserError:  # no earlier build, or a damaged file
        return start
    is_same = (saved.digest, saved.fingerprint) == (start.digest, start.fingerprint)
    return saved if is_same else start


def _row_groups(start: int, stop: int) -> Iterator[range]:
    for first in range(start, stop, _GROUP_SIZE):
        yield range(first, min(first + _GROUP_SIZE, stop))
