"""What lies in a prepared corpus, and its manifest.

    manifest.json                              written last: a folder without it is unfinished
    vocabulary/                                the vocabulary that made the ids
    documents-00003-of-00008.arrayrecord       one record = one document part (records.py)
    documents-00003-of-00008.index.npz         of each record: document, tokens, sentences
    documents-00003-of-00008.json              counts and checksums of the shard, for restarts
    plan.json                                  the settings and the work units, for restarts

Document numbers: a record and its row in the index hold the number *within the shard*, from 0,
because a shard is a function of its own sources alone. The number in the whole corpus is
`shard.first_document` + that number; `first_document` is known once all shards are written.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax.atomic_io import write_json
from bert_jax.errors import UserError
from bert_jax.legacy_names import MANIFEST, SHARD, rename_keys

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
PLAN_FILE = "plan.json"
TOKENIZER_FOLDER = "vocabulary"


@dataclass(frozen=True, kw_only=True)
class CorpusCounts:
    """Totals over kept documents; `text_bytes` counts their text, cleaned, as UTF-8."""

    documents: int = 0
    parts: int = 0
    sentences: int = 0
    tokens: int = 0
    text_bytes: int = 0

    def __add__(self, other: "CorpusCounts") -> "CorpusCounts":
        return CorpusCounts(
            **{k: v + getattr(other, k) for k, v in dataclasses.asdict(self).items()}
        )


@dataclass(frozen=True, kw_only=True)
class CorpusShard:
    """One shard: file names inside the folder, counts (parts = records), sha256 of both files."""

    records_file: str
    index_file: str
    counts: CorpusCounts
    dropped: dict[str, int]
    records_sha256: str
    index_sha256: str
    first_document: int = 0


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A finished prepared corpus.

    `source` says where the text came from; `dropped` counts left-out documents by reason; `dtype`
    is that of the stored ids; `fingerprint` is a hash of all that decides the content (vocabulary,
    part length, checksums of the shards), the same wherever the corpus was made.
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


def content_fingerprint(manifest: Manifest) -> str:
    """sha256 hex over everything that decides what a reader of the corpus sees."""
    content = {
        "format_version": manifest.format_version,
        "vocabulary": manifest.tokenizer_fingerprint,
        "dtype": manifest.dtype,
        "max_part_tokens": manifest.max_part_tokens,
        "shards": [[shard.records_sha256, shard.index_sha256] for shard in manifest.shards],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_manifest(folder: str | Path, manifest: Manifest) -> None:
    write_json(Path(folder) / MANIFEST_FILE, dataclasses.asdict(manifest))


def read_manifest(folder: str | Path) -> Manifest:
    """Opens `folder`/manifest.json.

    Raises:
      UserError: no such folder, an unfinished or foreign one, or one of another format version.
    """
    folder = Path(folder)
    path = folder / MANIFEST_FILE
    if not folder.is_dir():
        raise UserError(
            f"{folder}: this prepared corpus is missing (no such folder); "
            "`bert-jax prepare` makes it"
        )
    if not path.is_file():
        if (folder / PLAN_FILE).is_file():
            raise UserError(
                f"{folder}: this prepared corpus is unfinished (no {MANIFEST_FILE}); "
                "run the same `bert-jax prepare` again, finished shards are kept"
            )
        raise UserError(
            f"{folder}: not a prepared corpus (no {MANIFEST_FILE}); make one with "
            "`bert-jax prepare`"
        )
    data = read_json(path)
    data = rename_keys(data, MANIFEST) if isinstance(data, dict) else {}
    version = data.get("format_version")
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path}: format version {version!r}, this program reads {FORMAT_VERSION}; "
            "prepare the corpus again"
        )
    try:
        shards = tuple(shard_from_json(shard) for shard in data.pop("shards"))
        return Manifest(**{**data, "counts": CorpusCounts(**data["counts"]), "shards": shards})
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: not a manifest of a prepared corpus ({error})") from None


def shard_from_json(data: dict[str, Any]) -> CorpusShard:
    data = rename_keys(data, SHARD)
    return CorpusShard(**{**data, "counts": CorpusCounts(**data["counts"])})


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: not JSON ({error})") from None
