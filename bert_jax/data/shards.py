"""Writes one shard of a prepared corpus and the note that it is whole.

Records, index and note are each written aside and renamed, the note last. Whoever finds a note
that belongs to its plan can trust the shard; what a killed writer leaves has another name, or no
note, and is never read.
"""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_jax.aside import write_json
from bert_jax.data.documents import EncodedDocument
from bert_jax.data.manifest import Counts, Shard, read_json, shard_from_json
from bert_jax.data.records import DocumentPart, index_file, split_into_parts
from bert_jax.data.records import write_shard as write_records
from bert_jax.errors import UserError


def write_shard(
    path: Path,
    documents: Iterable[EncodedDocument | str],
    *,
    max_part_tokens: int,
    plan_fingerprint: str,
) -> Shard:
    """Writes records, index and note of the shard `path`; a str in `documents` is a drop's reason.

    The bytes of records and index depend on `documents` and `max_part_tokens` alone.

    Raises:
      UserError: the disk is full.
    """
    tally = _Tally()
    try:
        written = write_records(path, tally.parts(documents, max_part_tokens))
    except RuntimeError as error:  # how ArrayRecord tells of a full disk
        raise UserError(
            f"{path}: could not be written ({error}); finished shards are kept: make room and run "
            "the same command again"
        ) from error
    index = path.with_name(index_file(path.name))
    shard = Shard(
        file=path.name,
        index=index.name,
        counts=Counts(
            documents=written["documents"],
            parts=written["records"],
            sentences=written["sentences"],
            tokens=written["tokens"],
            text_bytes=tally.text_bytes,
        ),
        dropped=dict(sorted(tally.dropped.items())),
        sha256=_sha256(path),
        index_sha256=_sha256(index),
    )
    write_json(note_path(path), {"plan": plan_fingerprint, "shard": dataclasses.asdict(shard)})
    return shard


def finished_shard(path: Path, plan_fingerprint: str) -> Shard | None:
    """The shard `path` if it was written whole under this plan, else None."""
    shard = read_note(path, plan_fingerprint)
    if shard is None or not path.is_file() or not path.with_name(shard.index).is_file():
        return None
    return shard


def read_note(path: Path, plan_fingerprint: str) -> Shard | None:
    """What the note of the shard `path` says, if there is one and it belongs to this plan."""
    if not note_path(path).is_file():
        return None
    try:
        note: dict[str, Any] = read_json(note_path(path))
        return shard_from_json(note["shard"]) if note["plan"] == plan_fingerprint else None
    except (KeyError, TypeError, UserError):
        return None


def note_path(path: Path) -> Path:
    """Where the note of the shard `path` lies."""
    return path.with_suffix(".json")


class _Tally:
    """Turns documents into parts, keeping count of what the records do not tell."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.text_bytes = 0

    def parts(
        self, documents: Iterable[EncodedDocument | str], max_part_tokens: int
    ) -> Iterator[DocumentPart]:
        number = 0
        for document in documents:
            if isinstance(document, str):
                self.dropped[document] += 1
                continue
            self.text_bytes += document.text_bytes
            yield from split_into_parts(
                number, document.ids, document.sentence_ends, max_part_tokens
            )
            number += 1


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
