"""One record of a prepared corpus: a part of a document as token ids with its sentence ends.

A document is stored as one record, or, when it has more than `max_part_tokens` tokens, as
consecutive records of whole sentences with the same document number, so that reading at random
stays cheap. Document numbers are local to the shard that holds the document (a shard can then be
written without knowing the others); a document never spans two shards.

Layout, little-endian: header of 32 bytes (magic "BJD1", bytes per id, document, part, tokens,
sentences), then `sentences` uint32 sentence ends, then `tokens` ids as uint16 or uint32.
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_jax.aside import written_aside
from bert_jax.errors import UserError

# Group size 1 makes each record readable on its own; the ids hardly compress.
WRITER_OPTIONS = "group_size:1,uncompressed"

_MAGIC = b"BJD1"
_HEADER = struct.Struct("<4sB3xqIII4x")
_DTYPES = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_SENTENCE_END = np.dtype("<u4")


class DocumentPart(NamedTuple):
    """Whole sentences of one document.

    document: number of the document in its shard; part: 0, 1, ... within the document.
    ids: [T] uint16 or uint32 token ids without special tokens, T >= 1.
    sentence_ends: [S] uint32, strictly increasing, the last one is T.
    """

    document: int
    part: int
    ids: np.ndarray
    sentence_ends: np.ndarray


def ids_dtype(vocabulary_size: int) -> np.dtype:
    """The smallest of uint16 and uint32 that holds every id."""
    return _DTYPES[2] if vocabulary_size <= 1 << 16 else _DTYPES[4]


def encode(part: DocumentPart) -> bytes:
    """Serialises a part; the ids keep their dtype (uint16 or uint32).

    Raises:
      ValueError: another dtype, no tokens, or sentence ends that do not partition the ids.
    """
    ends = np.asarray(part.sentence_ends, dtype=np.int64)
    if part.ids.dtype not in (np.uint16, np.uint32):
        raise ValueError(f"ids are {part.ids.dtype}, expected uint16 or uint32")
    lengths = np.diff(ends, prepend=0)
    if len(ends) == 0 or ends[-1] != len(part.ids) or lengths.min() < 1:
        raise ValueError("sentence ends must increase strictly up to the number of ids")
    width = part.ids.dtype.itemsize
    header = _HEADER.pack(_MAGIC, width, part.document, part.part, len(part.ids), len(ends))
    return b"".join(
        (header, ends.astype(_SENTENCE_END).tobytes(), part.ids.astype(_DTYPES[width]).tobytes())
    )


def decode(record: bytes) -> DocumentPart:
    """The inverse of `encode`; the arrays are read-only views into `record`.

    Raises:
      UserError: the bytes are not a whole record of this format.
    """
    if len(record) < _HEADER.size:
        raise UserError(f"a record of {len(record)} bytes is too short to hold a document")
    magic, width, document, part, tokens, sentences = _HEADER.unpack_from(record)
    if magic != _MAGIC or width not in _DTYPES:
        raise UserError("a record does not start like a document; prepare the corpus again")
    size = _HEADER.size + 4 * sentences + width * tokens
    if len(record) != size:
        raise UserError(f"a record has {len(record)} bytes, expected {size}")
    ends = np.frombuffer(record, _SENTENCE_END, sentences, _HEADER.size)
    ids = np.frombuffer(record, _DTYPES[width], tokens, _HEADER.size + 4 * sentences)
    return DocumentPart(document, part, ids, ends)


def split_into_parts(
    document: int, ids: np.ndarray, sentence_ends: np.ndarray, max_part_tokens: int
) -> Iterator[DocumentPart]:
    """Cuts a document [T] into parts of whole sentences with at most `max_part_tokens` tokens.

    A single sentence that is longer than that becomes a part of its own.
    """
    ends = np.asarray(sentence_ends, dtype=np.int64)
    first, begin, part = 0, 0, 0
    while first < len(ends):
        stop = int(np.searchsorted(ends, begin + max_part_tokens, side="right"))
        stop = max(stop, first + 1)
        end = int(ends[stop - 1])
        local_ends = (ends[first:stop] - begin).astype(_SENTENCE_END)
        yield DocumentPart(document, part, ids[begin:end], local_ends)
        first, begin, part = stop, end, part + 1


def shard_file(shard: int, shards: int) -> str:
    """Name of a shard's records, as in documents-00003-of-00008.arrayrecord."""
    return f"documents-{shard:05d}-of-{shards:05d}.arrayrecord"


def index_file(shard: str) -> str:
    """Name of the sidecar that tells what each record of the shard file holds."""
    return shard.removesuffix(".arrayrecord") + ".index.npz"


def write_shard(path: Path, parts: Iterable[DocumentPart]) -> dict[str, int]:
    """Writes a shard and its index, each aside and then renamed; the index comes last.

    The index holds, for each record, `document` (int64, local to the shard), `tokens` (int32)
    and `sentences` (int32). An index in place therefore means that its shard is whole.

    Returns:
      The counts {"records", "documents", "tokens", "sentences"}.
    """
    from array_record.python.array_record_module import ArrayRecordWriter

    rows: list[tuple[int, int, int]] = []
    with written_aside(path) as aside:
        writer = ArrayRecordWriter(str(aside), WRITER_OPTIONS)
        for part in parts:
            writer.write(encode(part))
            rows.append((part.document, len(part.ids), len(part.sentence_ends)))
        writer.close()
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    write_index(path.with_name(index_file(path.name)), table)
    return {
        "records": len(table),
        "documents": len(np.unique(table[:, 0])),
        "tokens": int(table[:, 1].sum()),
        "sentences": int(table[:, 2].sum()),
    }


def write_index(path: Path, table: np.ndarray) -> None:
    """Writes the index of a shard from rows [R, 3] of (document, tokens, sentences)."""
    with written_aside(path) as aside, aside.open("wb") as file:
        np.savez(
            file,
            document=table[:, 0].astype(np.int64),
            tokens=table[:, 1].astype(np.int32),
            sentences=table[:, 2].astype(np.int32),
        )
