"""Writes one shard of a prepared corpus, with metadata that marks it as complete.

Records, index and metadata are each written to a temporary file and renamed, the metadata last. If
the metadata exists and belongs to the plan, the shard is complete. Files of a killed process have a
temporary name or no metadata, and are never read.
"""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_jax.data.corpus.documents import EncodedDocument
from bert_jax.data.corpus.manifest import CorpusCounts, CorpusShard, shard_from_json
from bert_jax.data.corpus.records import (
    DocumentPart,
    index_file_name,
    split_into_parts,
    write_records,
)
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import write_json
from bert_jax.io.json_io import read_json


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
