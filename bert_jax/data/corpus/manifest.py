"""Defines the files of a prepared corpus, and reads and writes its manifest.

    manifest.json                              written last: without it the corpus is unfinished
    vocabulary/                                the tokenizer that made the ids
    documents-00003-of-00008.arrayrecord       one record = one document part (records.py)
    documents-00003-of-00008.index.npz         for each record: document, tokens, sentences
    documents-00003-of-00008.json              counts and checksums of the shard, for restarts
    plan.json                                  the settings and the work units, for restarts

A record and its row in the index contain the document's number *within the shard*, from 0, because
a shard is written without knowing the others. The number in the whole corpus is
`shard.first_document` + that number; `first_document` is known when all shards are written.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io.atomic_io import write_json
from bert_jax.io.json_io import read_json

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
PLAN_FILE = "plan.json"
TOKENIZER_FOLDER = "vocabulary"


@dataclass(frozen=True, kw_only=True)
class CorpusCounts:
    """Counts what the corpus contains; `text_bytes` is the size of the cleaned text in UTF-8."""

    documents: int = 0
    parts: int = 0
    sentences: int = 0
    tokens: int = 0
    text_bytes: int = 0

    def __post_init__(self) -> None:
        _check_fields(self, int, dataclasses.asdict(self))

    def __add__(self, other: "CorpusCounts") -> "CorpusCounts":
        return CorpusCounts(
            **{k: v + getattr(other, k) for k, v in dataclasses.asdict(self).items()}
        )


@dataclass(frozen=True, kw_only=True)
class CorpusShard:
    """Describes a shard: file names, counts (parts are records) and sha256 of both files."""

    records_file: str
    index_file: str
    counts: CorpusCounts
    dropped: dict[str, int]
    records_sha256: str
    index_sha256: str
    first_document: int = 0

    def __post_init__(self) -> None:
        _check_fields(self, str, ("records_file", "index_file", "records_sha256", "index_sha256"))
        _check_fields(self, int, ("first_document",))
        _check_fields(self, dict, ("dropped",))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Describes a finished prepared corpus.

    Attributes:
      source: where the text came from.
      dropped: number of dropped documents for each reason.
      dtype: dtype of the stored ids.
      fingerprint: hash of everything that decides the content: tokenizer, part length, checksums
        of the shards. It does not depend on the machine.
    """

    source: dict[str, Any]
    task: str | None
    settings: dict[str, Any]
    counts: CorpusCounts
    dropped: dict[str, int]
    tokenizer_fingerprint: str
    vocab_size: int
    dtype: str
    max_part_tokens: int
    shards: tuple[CorpusShard, ...]
    fingerprint: str
    versions: dict[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        _check_fields(self, int, ("vocab_size", "max_part_tokens"))
        _check_fields(self, str, ("tokenizer_fingerprint", "dtype", "fingerprint"))
        _check_fields(self, dict, ("source", "settings", "dropped", "versions"))


def _check_fields(instance: Any, kind: type, names: Iterable[str]) -> None:
    """Raises TypeError if a field that was read from a file has another type, or is negative."""
    for name in names:
        value = getattr(instance, name)
        # Not `isinstance`: True is an instance of int.
        if type(value) is not kind or (kind is int and value < 0):
            expected = "a number of at least 0" if kind is int else f"a {kind.__name__}"
            raise TypeError(f"{name} is {value!r}, expected {expected}")


def content_fingerprint(manifest: Manifest) -> str:
    """Returns the sha256 (hex) of everything that decides the content of the corpus."""
    content = {
        "format_version": manifest.format_version,
        "vocabulary": manifest.tokenizer_fingerprint,
        "dtype": manifest.dtype,
        "max_part_tokens": manifest.max_part_tokens,
        "shards": [[shard.records_sha256, shard.index_sha256] for shard in manifest.shards],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_manifest(folder: str | Path, manifest: Manifest) -> None:
    """Writes `folder`/manifest.json."""
    write_json(Path(folder) / MANIFEST_FILE, dataclasses.asdict(manifest))


def read_manifest(folder: str | Path) -> Manifest:
    """Reads `folder`/manifest.json.

    Raises:
      UserError: the folder does not exist, is no prepared corpus, is unfinished, or has another
        format version.
    """
    folder = Path(folder)
    path = folder / MANIFEST_FILE
    if not folder.is_dir():
        raise UserError(
            f"{folder}: no such folder; expected a prepared corpus, which `bert-jax prepare` makes"
        )
    if not path.is_file():
        if (folder / PLAN_FILE).is_file():
            raise UserError(
                f"{folder}: this prepared corpus is unfinished (no {MANIFEST_FILE}); run the same "
                "`bert-jax prepare` again, which continues after the finished shards"
            )
        raise UserError(
            f"{folder}: not a prepared corpus (no {MANIFEST_FILE}); make one with "
            "`bert-jax prepare`"
        )
    data = read_json(path)
    version = data.get("format_version") if isinstance(data, dict) else None
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path}: format_version is {version!r}, expected {FORMAT_VERSION}; "
            "prepare the corpus again"
        )
    try:
        data["shards"] = tuple(shard_from_json(shard) for shard in data["shards"])
        data["counts"] = CorpusCounts(**data["counts"])
        return Manifest(**data)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{path}: not a manifest of a prepared corpus ({error})") from None


def shard_from_json(data: dict[str, Any]) -> CorpusShard:
    data["counts"] = CorpusCounts(**data["counts"])
    return CorpusShard(**data)
