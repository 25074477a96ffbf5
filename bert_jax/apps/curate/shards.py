"""Writes the shard of a work unit: its kept documents, and the ledger of all its documents."""

import gzip
import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bert_jax.apps.curate.corpus import Corpus, encode_json_line, read_summary
from bert_jax.apps.curate.ledger import RETAINED, Counts, LedgerRow, open_ledger
from bert_jax.data.corpus.contamination.found_items import DOCUMENTS
from bert_jax.io.atomic_io import atomic_path, write_json

LEDGER = "ledger-{}.parquet"
"""Names of the two files of a shard, with `shard_suffix` in place of {}."""


def shard_suffix(unit: int, num_units: int) -> str:
    """Returns the part of a file name that numbers the shard, "00003-of-00008"."""
    return f"{unit:05d}-of-{num_units:05d}"


def write_shard(summary_path: Path, corpus: Corpus, unit: int) -> None:
    """Writes both files of a shard next to its summary, which is written last.

    The summary is JSON: counts, removed lines by reason, and SHA-256 of the uncompressed documents,
    because compressors differ between versions.

    Args:
      corpus: with the decisions of all steps.
    """
    suffix = shard_suffix(unit, corpus.num_units)
    folder = summary_path.parent
    counts, sha256 = Counts(), hashlib.sha256()
    spill_summary = read_summary(corpus.spill_path(unit))
    removed_lines = Counter[str](spill_summary["removed_lines"])
    with (
        open_ledger(folder / LEDGER.format(suffix)) as add_row,
        atomic_path(folder / DOCUMENTS.format(suffix)) as tmp_path,
    ):
        # The time of the file would make its bytes differ.
        with open(tmp_path, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as shard:
            for record, removed in corpus.records(unit):
                removed_lines.update(removed)
                row = LedgerRow(
                    id=record["id"],
                    source=corpus.sources[unit],
                    digest=record["digest"],
                    characters=record["characters"],
                    retained_characters=len(record["text"]),
                    reason=record["reason"],
                    value=record["value"],
                    twin=record["twin"],
                )
                add_row(row)
                counts.add(row)
                if row.reason == RETAINED:
                    fields = {"id": row.id, "text": record["text"]}
                    fields |= rename_clashes(record["fields"], fields)
                    line = encode_json_line(fields)
                    sha256.update(line)
                    shard.write(line)
    if counts.documents != spill_summary["documents"]:
        raise RuntimeError(
            f"{corpus.spill_path(unit)}: has {counts.documents} documents, but "
            f"{spill_summary['documents']} were read"
        )
    summary: dict[str, Any] = {
        "counts": counts.to_json(),
        "removed_lines": dict(sorted(removed_lines.items())),
        "read_counts": spill_summary["read_counts"],
        "sha256": sha256.hexdigest(),
    }
    write_json(summary_path, summary)


def rename_clashes(fields: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Returns other fields of a document; "original_" is put before those that have our names."""
    renamed: dict[str, Any] = {}
    for name, value in fields.items():
        if name in names:
            name = f"original_{name}"
            while name in fields:
                name = f"original_{name}"
        renamed[name] = value
    return renamed
