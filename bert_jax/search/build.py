"""Builds an index of texts; an interrupted build continues where it stopped.

The files are written to `.NAME.building` next to the index, which gets its name when it is
complete. `progress.json` there has how many vectors are on disk and a digest of the documents.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from bert_jax.atomic_io import cannot_write_error, check_new_folder, write_json
from bert_jax.config_lib import from_json, to_json
from bert_jax.errors import UserError
from bert_jax.file_lock import AlreadyLockedError, acquire_lock
from bert_jax.json_io import read_json_object
from bert_jax.search.documents import Document
from bert_jax.search.encoder import TextEncoder
from bert_jax.search.index import (
    DOCUMENTS,
    GRAPH,
    INFO,
    OFFSETS,
    VECTORS,
    IndexInfo,
    SearchIndex,
    open_array,
    read_documents_at,
)
from bert_jax.search.nearest import ApproximateNeighbors

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
    are used.

    Args:
      approximate: whether to build the graph for approximate search as well (usearch).

    Raises:
      UserError: `output` is not empty or cannot be written, there are no documents, vectors have
        two widths, or another process builds the same index.
    """
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


def _finish(building: Path, output: Path, info: IndexInfo) -> None:
    write_json(building / INFO, to_json(info))
    for name in (_PROGRESS, _LOCK):
        (building / name).unlink()
    os.replace(building, output)


def _write_documents(building: Path, documents: Iterable[Document]) -> tuple[np.ndarray, str]:
    """Writes all documents; returns the offsets of their lines, int64 [N + 1], and a digest."""
    digest, offsets = hashlib.blake2b(digest_size=16), [0]
    with (building / DOCUMENTS).open("wb") as file:
        for document in documents:
            record = {"id": document.id, "text": document.text}
            line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
            digest.update(line)
            file.write(line)
            offsets.append(offsets[-1] + len(line))
    offsets = np.array(offsets, np.int64)
    np.save(building / OFFSETS, offsets)
    return offsets, digest.hexdigest()


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
