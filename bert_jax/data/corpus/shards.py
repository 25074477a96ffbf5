"""Encodes documents as records of token ids and sentence ends, and writes shards of records.

A document is stored as one record, or, if it has more than `max_part_tokens` tokens, as consecutive
records of whole sentences with the same document number, which keeps random access cheap. Document
numbers are local to a shard, so that a shard can be written without knowing the others; a document
is never split between two shards.

The layout is little-endian: a header of 32 bytes (magic "BJD1", bytes per id, document, part,
tokens, sentences), then `sentences` uint32 sentence ends, then `tokens` ids as uint16 or uint32.

`bert-jax prepare`, the Beam pipeline and the preprocessors of seqio tasks all use these functions,
so that a corpus has the same bytes whichever of them prepared it.

Records, index and metadata are each written to a temporary file and renamed, the metadata last. If
the metadata exists and belongs to the plan, the shard is complete. Files of a killed process have a
temporary name or no metadata, and are never read.
"""

import contextlib
import dataclasses
import hashlib
import struct
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.corpus.manifest import CorpusCounts, CorpusShard, shard_from_json
from bert_jax.errors import UserError, check_range
from bert_jax.io.atomic_io import atomic_path, write_json
from bert_jax.io.json_io import read_json
from bert_jax.text.cleaning import clean_text, drop_reason
from bert_jax.text.sentences import SentenceSplitter
from bert_jax.text.tokenizer import Tokenizer

# With group size 1 each record can be read alone. Token ids hardly compress.
WRITER_OPTIONS = "group_size:1,uncompressed"

_MAGIC = b"BJD1"
# Padded to 32 bytes, so that the arrays behind it are aligned to the size of their numbers.
_HEADER = struct.Struct("<4sB3xqIII4x")
_ID_DTYPES = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_SENTENCE_END_DTYPE = np.dtype("<u4")


class DocumentPart(NamedTuple):
    """Holds whole sentences of one document.

    Attributes:
      document: number of the document in its shard.
      part: 0, 1, ... within the document.
      ids: [T] uint16 or uint32 token ids without special tokens, T >= 1.
      sentence_ends: [S] uint32, strictly increasing, the last one is T.
    """

    document: int
    part: int
    ids: np.ndarray
    sentence_ends: np.ndarray


def ids_dtype(vocab_size: int) -> np.dtype:
    """Returns the smaller of uint16 and uint32 that can represent every id."""
    return _ID_DTYPES[2] if vocab_size <= 1 << 16 else _ID_DTYPES[4]


def encode_record(part: DocumentPart) -> bytes:
    """Serializes a document part; the ids keep their dtype (uint16 or uint32).

    Raises:
      ValueError: the ids have another dtype, there are none, or the sentence ends do not fit them.
    """
    ends = np.asarray(part.sentence_ends, dtype=np.int64)
    if part.ids.dtype not in (np.dtype(np.uint16), np.dtype(np.uint32)):
        raise ValueError(f"ids are {part.ids.dtype}, expected uint16 or uint32")
    lengths = np.diff(ends, prepend=0)
    if len(ends) == 0 or ends[-1] != len(part.ids) or lengths.min() < 1:
        raise ValueError("sentence ends must increase strictly up to the number of ids")
    bytes_per_id = part.ids.dtype.itemsize
    header = _HEADER.pack(_MAGIC, bytes_per_id, part.document, part.part, len(part.ids), len(ends))
    return b"".join(
        (
            header,
            ends.astype(_SENTENCE_END_DTYPE).tobytes(),
            part.ids.astype(_ID_DTYPES[bytes_per_id]).tobytes(),
        )
    )


def decode_record(record: bytes) -> DocumentPart:
    """Decodes what `encode_record` wrote; the arrays are read-only views into `record`.

    Raises:
      UserError: the bytes are not a complete record of this format.
    """
    if len(record) < _HEADER.size:
        raise UserError(f"a record has {len(record)} bytes, expected at least {_HEADER.size}")
    magic, bytes_per_id, document, part, tokens, sentences = _HEADER.unpack_from(record)
    if magic != _MAGIC or bytes_per_id not in _ID_DTYPES:
        raise UserError(
            "a record does not begin with the header of a document; prepare the corpus again"
        )
    expected_bytes = _HEADER.size + 4 * sentences + bytes_per_id * tokens
    if len(record) != expected_bytes:
        raise UserError(f"a record has {len(record)} bytes, expected {expected_bytes}")
    ends = np.frombuffer(record, _SENTENCE_END_DTYPE, sentences, _HEADER.size)
    ids = np.frombuffer(record, _ID_DTYPES[bytes_per_id], tokens, _HEADER.size + 4 * sentences)
    return DocumentPart(document, part, ids, ends)


def split_into_parts(
    document: int, ids: np.ndarray, sentence_ends: np.ndarray, max_part_tokens: int
) -> Iterator[DocumentPart]:
    """Splits a document [T] into parts of whole sentences of at most `max_part_tokens` tokens.

    A single sentence that is longer than that becomes a part of its own.
    """
    ends = np.asarray(sentence_ends, dtype=np.int64)
    first_sentence, first_token, part = 0, 0, 0
    while first_sentence < len(ends):
        stop_sentence = int(np.searchsorted(ends, first_token + max_part_tokens, side="right"))
        # A sentence is never divided, because windows begin and end at sentences.
        stop_sentence = max(stop_sentence, first_sentence + 1)
        end_token = int(ends[stop_sentence - 1])
        local_ends = (ends[first_sentence:stop_sentence] - first_token).astype(_SENTENCE_END_DTYPE)
        yield DocumentPart(document, part, ids[first_token:end_token], local_ends)
        first_sentence, first_token, part = stop_sentence, end_token, part + 1


def shard_file_name(shard_index: int, num_shards: int) -> str:
    """Returns the name of a shard's records file, as documents-00003-of-00008.arrayrecord."""
    return f"documents-{shard_index:05d}-of-{num_shards:05d}.arrayrecord"


def index_file_name(shard_file: str) -> str:
    """Returns the name of the index file of a shard, which describes each of its records."""
    return shard_file.removesuffix(".arrayrecord") + ".index.npz"


def write_records(path: Path, parts: Iterable[DocumentPart]) -> dict[str, int]:
    """Writes a shard and then its index, each to a temporary file that is renamed.

    If the index exists, the file of records is therefore complete. For each record, the index
    contains `document` (int64, local to the shard), `tokens` (int32) and `sentences` (int32).

    Returns:
      The counts {"records", "documents", "tokens", "sentences"}.

    Raises:
      UserError: the disk is full.
    """
    from array_record.python.array_record_module import ArrayRecordWriter

    index_rows: list[tuple[int, int, int]] = []
    with atomic_path(path) as tmp_path:
        with _writer_errors(path):
            writer = ArrayRecordWriter(str(tmp_path), WRITER_OPTIONS)
        for part in parts:
            record = encode_record(part)
            with _writer_errors(path):
                writer.write(record)
            index_rows.append((part.document, len(part.ids), len(part.sentence_ends)))
        with _writer_errors(path):
            writer.close()
    index_table = np.array(index_rows, dtype=np.int64).reshape(-1, 3)
    write_index(path.with_name(index_file_name(path.name)), index_table)
    return {
        "records": len(index_table),
        "documents": len(np.unique(index_table[:, 0])),
        "tokens": int(index_table[:, 1].sum()),
        "sentences": int(index_table[:, 2].sum()),
    }


@contextlib.contextmanager
def _writer_errors(path: Path) -> Generator[None]:
    """Converts the RuntimeError that ArrayRecord's writer raises if the disk is full."""
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            f"{path}: cannot be written ({error}). Finished shards are kept: free disk space and "
            "run the same command again"
        ) from error


def write_index(path: Path, index_table: np.ndarray) -> None:
    """Writes the index of a shard from a table [R, 3] of document, tokens and sentences."""
    with atomic_path(path) as tmp_path, tmp_path.open("wb") as file:
        np.savez(
            file,
            document=index_table[:, 0].astype(np.int64),
            tokens=index_table[:, 1].astype(np.int32),
            sentences=index_table[:, 2].astype(np.int32),
        )


# A reason for dropping a document, in addition to the reasons of text/cleaning.py.
NO_TOKENS = "no tokens"


@dataclass(frozen=True, kw_only=True)
class DocumentsConfig:
    """Configures how documents are split into sentences and into records.

    A document of more than `max_part_tokens` tokens is stored as several records of whole
    sentences, which keeps random access cheap. `splitter` names a sentence splitter of
    text/sentences.py.
    """

    splitter: str = "rules"
    max_part_tokens: int = 8192

    def __post_init__(self) -> None:
        check_range("max_part_tokens", self.max_part_tokens, at_least=16)


@dataclass(frozen=True, eq=False)
class EncodedDocument:
    """Holds ids [T], ends of sentences in ids [S] (ascending, the last is T), and bytes of text."""

    ids: np.ndarray
    sentence_ends: np.ndarray
    text_bytes: int


def clean_document(text: str) -> tuple[str, str]:
    """Returns the cleaned text and the reason to drop the document ("" to keep it)."""
    cleaned = clean_text(text)
    return cleaned, drop_reason(cleaned) or ""


def encode_sentences(
    sentences: Sequence[str], tokenizer: Tokenizer
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids [T] of all sentences, uint16 or uint32, and their ends in ids, uint32 [S].

    Sentences without any token (for example, of control characters only) are left out.
    """
    encoded = tokenizer.encode_ids(sentences)
    lengths = np.fromiter((len(ids) for ids in encoded), np.uint32, len(encoded))
    dtype = ids_dtype(tokenizer.vocab_size)
    ids = np.concatenate(encoded).astype(dtype) if len(encoded) else np.zeros(0, dtype)
    return ids, np.cumsum(lengths, dtype=np.uint32)[lengths > 0]


def encode_document(
    text: str, tokenizer: Tokenizer, splitter: SentenceSplitter
) -> EncodedDocument | str:
    """Cleans, splits and tokenizes a document; returns it, or the reason why it is dropped."""
    text, reason = clean_document(text)
    if reason:
        return reason
    ids, sentence_ends = encode_sentences(splitter.split(text), tokenizer)
    if not len(ids):
        return NO_TOKENS
    return EncodedDocument(ids, sentence_ends, len(text.encode("utf-8", "surrogatepass")))


def write_shard(
    path: Path,
    documents: Iterable[EncodedDocument | str],
    *,
    max_part_tokens: int,
    plan_fingerprint: str,
) -> CorpusShard:
    """Writes records, index and metadata of the shard `path`.

    The bytes of records and index depend only on `documents` and `max_part_tokens`. A str in
    `documents` stands for a dropped document and is the reason.

    Raises:
      UserError: the disk is full.
    """
    part_counter = _PartCounter()
    record_counts = write_records(path, part_counter.split_documents(documents, max_part_tokens))
    index_path = path.with_name(index_file_name(path.name))
    shard = CorpusShard(
        records_file=path.name,
        index_file=index_path.name,
        counts=CorpusCounts(
            documents=record_counts["documents"],
            parts=record_counts["records"],
            sentences=record_counts["sentences"],
            tokens=record_counts["tokens"],
            text_bytes=part_counter.text_bytes,
        ),
        dropped=dict(sorted(part_counter.dropped.items())),
        records_sha256=_sha256(path),
        index_sha256=_sha256(index_path),
    )
    write_json(
        shard_metadata_path(path), {"plan": plan_fingerprint, "shard": dataclasses.asdict(shard)}
    )
    return shard


def finished_shard(path: Path, plan_fingerprint: str) -> CorpusShard | None:
    """Returns the shard `path` if it is undamaged and belongs to this plan, else None.

    Both files are compared with the checksums in the metadata.
    """
    shard = read_shard_metadata(path, plan_fingerprint)
    if shard is None:
        return None
    checksums = {path: shard.records_sha256, path.with_name(shard.index_file): shard.index_sha256}
    if any(not file.is_file() or _sha256(file) != digest for file, digest in checksums.items()):
        return None
    return shard


def read_shard_metadata(path: Path, plan_fingerprint: str) -> CorpusShard | None:
    """Reads the metadata of the shard `path`; None if it does not exist or has another plan."""
    if not shard_metadata_path(path).is_file():
        return None
    try:
        metadata: dict[str, Any] = read_json(shard_metadata_path(path))
        return shard_from_json(metadata["shard"]) if metadata["plan"] == plan_fingerprint else None
    # Damaged metadata are no error: the shard is written again.
    except (KeyError, TypeError, AttributeError, ValueError, UserError):
        return None


def shard_metadata_path(path: Path) -> Path:
    """Returns the path of the metadata of the shard `path`."""
    return path.with_suffix(".json")


class _PartCounter:
    """Splits documents into parts, and counts dropped documents and bytes of text."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.text_bytes = 0

    def split_documents(
        self, documents: Iterable[EncodedDocument | str], max_part_tokens: int
    ) -> Iterator[DocumentPart]:
        document_index = 0
        for document in documents:
            if isinstance(document, str):
                self.dropped[document] += 1
                continue
            self.text_bytes += document.text_bytes
            yield from split_into_parts(
                document_index, document.ids, document.sentence_ends, max_part_tokens
            )
            document_index += 1


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
