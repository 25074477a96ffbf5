"""Curates a corpus: `curate(config, Path("curated"))`; writes documents and a ledger.

<output>/plan.json                      the config, the files of the input, their fingerprint
         documents-00000-of-00004.jsonl.gz   the documents that are kept, for `bert-jax prepare`
         ledger-00000-of-00004.parquet       what happened to each document of the input
         manifest.json                  counts by source and reason, written last

Work unit k becomes shard k. First each unit decides about its documents alone (units.py); then all
of them are compared; then each unit writes its shard. The bytes of the shards depend on neither the
number of processes nor on restarts; the checksums in the manifest are those of the uncompressed
text, because compressors differ between versions.
"""

import dataclasses
import gzip
import hashlib
import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bert_jax import __version__
from bert_jax import config_lib as configs
from bert_jax.atomic_io import atomic_path, make_folder, write_json
from bert_jax.data.corpus.curation import units
from bert_jax.data.corpus.curation.ledger import RETAINED, Counts, LedgerRow, write_ledger
from bert_jax.data.corpus.curation.plan import (
    CurationConfig,
    CurationUnit,
    ExactDuplicates,
    make_plan,
    make_units,
)
from bert_jax.errors import UserError
from bert_jax.file_lock import AlreadyLockedError, acquire_lock
from bert_jax.json_io import read_json
from bert_jax.parent_process import exit_with_parent

PLAN_FILE, MANIFEST_FILE, LOCK_FILE = "plan.json", "manifest.json", ".lock"


def curate(
    config: CurationConfig, output: Path, *, num_workers: int | None = None
) -> dict[str, Any]:
    """Writes a curated corpus; work that an earlier run of the same config finished is kept.

    Args:
      num_workers: number of processes (default: one for each core); 1 uses this process.

    Returns:
      The manifest: counts, reasons by source, files with their checksums.

    Raises:
      UserError: the input cannot be read, the folder contains something else, or more than
        `config.max_dropped` of the characters would be dropped.
    """
    make_folder(output)
    try:
        lock = acquire_lock(output / LOCK_FILE)
    except AlreadyLockedError:
        raise UserError(
            f"--output {output}: another process is writing there; wait for it or choose another "
            "folder"
        ) from None
    with lock:
        work = make_units(config)
        plan = make_plan(config, work)
        fingerprint = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()
        _check_output(output, plan)
        if (output / MANIFEST_FILE).is_file():
            manifest = read_json(output / MANIFEST_FILE)
            _check_dropped(config, manifest)
            _remove_spills(output)
            return manifest
        spills = [output / f".spill-{k:05d}.jsonl.gz" for k in range(len(work))]
        _write_spills(config, work, spills, fingerprint, num_workers or os.cpu_count() or 1)
        winners = _winners(config, spills)
        manifest = _write_shards(config, work, spills, winners, output)
        manifest["fingerprint"] = fingerprint
        write_json(output / MANIFEST_FILE, manifest)
        _remove_spills(output)
        return manifest


def _remove_spills(output: Path) -> None:
    """Removes the files between the steps; a killed run may have left them after its manifest."""
    for spill in output.glob(".spill-*"):
        spill.unlink()


def _check_output(output: Path, plan: dict[str, Any]) -> None:
    """Writes the plan, or compares it with that of an earlier run."""
    path = output / PLAN_FILE
    if path.is_file():
        if differences := configs.diff(read_json(path), plan):
            lines = [
                "the files of a source were added, removed or changed"
                if name == "files"
                else f"{name}: was {old!r}, now {new!r}"
                for name, old, new in differences
            ]
            raise UserError(
                f"--output {output}: contains a corpus that was curated with other settings:\n  "
                + "\n  ".join(lines)
                + "\nchoose another --output, or remove the folder"
            )
        return
    if others := sorted(p.name for p in output.iterdir() if p.name != LOCK_FILE):
        raise UserError(
            f"--output {output}: not empty and not a curated corpus (it contains {others[0]}); "
            "choose a new folder"
        )
    write_json(path, plan)


def _write_spills(
    config: CurationConfig,
    work: Sequence[CurationUnit],
    spills: Sequence[Path],
    fingerprint: str,
    num_workers: int,
) -> None:
    """Writes the spill files that do not exist, in several processes."""
    missing = [k for k, s in enumerate(spills) if not units.is_finished(s, fingerprint)]
    total = sum(_text_bytes(work[k]) for k in missing)
    arguments = {k: (work[k], config, spills[k], fingerprint) for k in missing}
    with tqdm(desc="curate", total=total, unit="B", unit_scale=True, disable=None) as bar:
        if min(num_workers, len(missing)) <= 1:
            for k in missing:
                units.write_spill(*arguments[k])
                bar.update(_text_bytes(work[k]))
            return
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(num_workers, context, initializer=exit_with_parent)
        try:
            # The largest first, so that no single process is busy with one at the end.
            order = sorted(missing, key=lambda k: -_text_bytes(work[k]))
            futures = {pool.submit(units.write_spill, *arguments[k]): k for k in order}
            for future in as_completed(futures):
                future.result()
                bar.update(_text_bytes(work[futures[future]]))
        except BrokenProcessPool:
            raise UserError(
                "a worker process was killed, perhaps because memory ran out. Finished work is "
                "kept: run the same command again with fewer --workers"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _text_bytes(unit: CurationUnit) -> int:
    return sum(file.text_bytes for file in unit.files)


def _winners(config: CurationConfig, spills: Sequence[Path]) -> dict[str, str]:
    """Returns the id of the document that is kept for each match key; {} to keep duplicates.

    The rank is the order of the input: sources by priority, then files by name, then documents.
    Memory holds one key and one id for each different document.
    """
    if config.duplicates is None:
        return {}
    winners: dict[str, str] = {}
    for spill in spills:
        for record in units.read_documents_of(spill):
            if record["reason"] == RETAINED:
                winners.setdefault(record["key"], record["id"])
    return winners


def _write_shards(
    config: CurationConfig,
    work: Sequence[CurationUnit],
    spills: Sequence[Path],
    winners: dict[str, str],
    output: Path,
) -> dict[str, Any]:
    """Writes the documents and the ledger of every unit; returns the manifest.

    Raises:
      UserError: too much would be dropped; nothing is written then.
    """
    counts, removed_lines, read_counts = Counts(), Counter[str](), Counter[str]()
    for unit, spill in zip(work, spills, strict=True):
        for row in _ledger_rows(unit, spill, winners):
            counts.add(row)
        summary = units.read_summary(spill)
        removed_lines.update(summary["removed_lines"])
        read_counts.update(summary["read_counts"])
    manifest: dict[str, Any] = {
        "bert_jax": __version__,
        "counts": counts.to_json(),
        "removed_lines": dict(sorted(removed_lines.items())),
        "read_counts": dict(sorted(read_counts.items())),
        "shards": [],
    }
    _check_dropped(config, manifest)
    for k, (unit, spill) in enumerate(zip(work, spills, strict=True)):
        rows = list(_ledger_rows(unit, spill, winners))
        if len(rows) != units.read_summary(spill)["documents"]:
            raise RuntimeError(f"{spill}: the ledger has {len(rows)} rows, fewer than documents")
        suffix = f"{k:05d}-of-{len(work):05d}"
        file = output / f"documents-{suffix}.jsonl.gz"
        ids = {row.id for row in rows if row.reason == RETAINED}
        sha256 = _write_documents(file, spill, ids)
        manifest["shards"].append({"file": file.name, "documents": len(ids), "sha256": sha256})
        write_ledger(output / f"ledger-{suffix}.parquet", rows)
    return manifest


def _ledger_rows(unit: CurationUnit, spill: Path, winners: dict[str, str]) -> Iterator[LedgerRow]:
    """Yields the row of each document of a unit."""
    for record in units.read_documents_of(spill):
        row = LedgerRow(
            id=record["id"],
            source=unit.source,
            digest=record["digest"],
            characters=record["characters"],
            retained_characters=len(record["text"]),
            reason=record["reason"],
            value=record["value"],
        )
        twin = winners.get(record["key"], row.id)
        if row.reason == RETAINED and twin != row.id:
            reason = ExactDuplicates.REASON
            row = dataclasses.replace(row, reason=reason, twin=twin, retained_characters=0)
        yield row


def _check_dropped(config: CurationConfig, manifest: dict[str, Any]) -> None:
    """Raises an error if more than `max_dropped` of the characters were dropped."""
    counts = manifest["counts"]
    dropped = 1 - counts["retained_characters"] / max(counts["characters"], 1)
    if counts["retained_documents"] and dropped <= config.max_dropped:
        return
    reasons = sum(map(Counter, counts["dropped"].values()), Counter[str]())
    documents = [f"{reason} ({count:,})" for reason, count in reasons.most_common(3)]
    lines = [f"{reason} ({count:,} lines)" for reason, count in manifest["removed_lines"].items()]
    frequent = ", ".join(documents + lines)
    if not counts["retained_documents"]:
        raise UserError(
            f"no document is left; the most frequent reasons by document: {frequent}. Change the "
            "limits of these rules"
        )
    raise UserError(
        f"{dropped:.1%} of the characters would be dropped, more than max_dropped, which is "
        f"{config.max_dropped:.1%}; the most frequent reasons by document: {frequent}. Change the "
        "limits of these rules, or raise max_dropped: the work that is done is kept"
    )


def _write_documents(path: Path, spill: Path, ids: set[str]) -> str:
    """Writes the kept documents as JSON lines; returns SHA-256 of the uncompressed bytes."""
    sha256 = hashlib.sha256()
    with atomic_path(path) as tmp_path:
        with open(tmp_path, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as shard:
            for record in units.read_documents_of(spill):
                if record["id"] in ids:
                    fields = record["fields"] | {"id": record["id"], "text": record["text"]}
                    line = (json.dumps(fields, ensure_ascii=False) + "\n").encode()
                    sha256.update(line)
                    shard.write(line)
    return sha256.hexdigest()
