"""Curates a corpus: `curate(config, Path("curated"))`; writes documents and a ledger.

<output>/plan.json                      the config, the files of the input, their fingerprint
         documents-00000-of-00004.jsonl.gz   the documents that are kept, for `bert-jax prepare`
         ledger-00000-of-00004.parquet       what happened to each document of the input
         contamination*                 what was found of evaluation sets (found_items.py)
         manifest.json                  counts by source and reason, written last

Work unit k becomes shard k. First each unit decides about its documents alone (units.py); then each
step compares the documents of all units (corpus.py); then each unit writes its shard.
The files between are in the folder `.work`, which is removed at the end. The bytes of the shards
depend neither on the number of processes nor on restarts.
"""

import dataclasses
import functools
import gzip
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.apps.curate import units
from bert_jax.apps.curate.corpus import (
    Corpus,
    encode_json_line,
    is_finished,
    read_summary,
)
from bert_jax.apps.curate.decontamination import Decontamination
from bert_jax.apps.curate.ledger import RETAINED, Counts, LedgerRow, open_ledger
from bert_jax.apps.curate.plan import (
    CurationConfig,
    CurationUnit,
    make_plan,
    make_units,
    package_versions,
)
from bert_jax.apps.curate.workers import Workers
from bert_jax.config import config_lib as configs
from bert_jax.data.corpus.contamination.found_items import DOCUMENTS, import_pyarrow
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_path, make_folder, write_json
from bert_jax.io.file_lock import AlreadyLockedError, acquire_lock
from bert_jax.io.json_io import read_json
from bert_jax.version import __version__

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


MAX_READ_COUNTS = 300
PLAN_FILE, MANIFEST_FILE, LOCK_FILE, WORK_FOLDER = "plan.json", "manifest.json", ".lock", ".work"

# Key of a hash in the plan -> what the hashed files belong to.
_FILES = {"files": "a source", "evaluation_files": "an evaluation set"}


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
    return curate_with(config, output, Workers(num_workers or os.cpu_count() or 1))


def curate_with(config: CurationConfig, output: Path, workers: Workers) -> dict[str, Any]:
    """Does what `curate` does, with the given workers, which it starts and ends."""
    import_pyarrow()  # raises before the work, not when the first ledger is written
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
        if not (output / MANIFEST_FILE).is_file():
            for step in config.steps:
                if isinstance(step, Decontamination):
                    step.check_sets()
        plan = make_plan(config, work)
        fingerprint = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()
        _check_output(output, plan)
        work_folder = output / WORK_FOLDER
        if (output / MANIFEST_FILE).is_file():
            manifest = read_json(output / MANIFEST_FILE)
            _check_dropped(config, manifest)
        else:
            make_folder(work_folder)
            with workers:
                manifest = _write_shards(config, work, output, fingerprint, workers)
            manifest["fingerprint"] = fingerprint
            write_json(output / MANIFEST_FILE, manifest)
        # A run that was killed after it wrote the manifest may have left the folder.
        shutil.rmtree(work_folder, ignore_errors=True)
        return manifest


def _check_output(output: Path, plan: dict[str, Any]) -> None:
    """Writes the plan, or compares it with an earlier run's."""
    path = output / PLAN_FILE
    if path.is_file():
        differences = configs.diff(read_json(path), plan)
        is_begun = (output / MANIFEST_FILE).is_file() or any((output / WORK_FOLDER).glob("spill-*"))
        # A plan without finished work is a first attempt with a mistake, which may be corrected.
        if differences and not is_begun:
            write_json(path, plan)
        elif differences:
            lines = [
                f"the files of {_FILES[name]} were added, removed or changed"
                if name in _FILES
                else f"{name}: was {old!r}, now {new!r}"
                for name, old, new in differences
            ]
            raise UserError(
                f"--output {output}: contains a corpus that was curated with other settings:\n  "
                + "\n  ".join(lines)
                + "\nchoose another --output, or remove the folder"
            )
        return
    # A run that was killed while it wrote the plan leaves a file ".plan.json.HOST.PID.partial".
    names = (p.name for p in output.iterdir() if not p.match(".*.partial"))
    if others := sorted(name for name in names if name != LOCK_FILE):
        raise UserError(
            f"--output {output}: not empty and not a curated corpus (it contains {others[0]}); "
            "choose a new folder"
        )
    write_json(path, plan)


def _write_shards(
    config: CurationConfig,
    work: Sequence[CurationUnit],
    output: Path,
    fingerprint: str,
    workers: Workers,
) -> dict[str, Any]:
    """Writes the documents and the ledger of every unit; returns the manifest.

    Raises:
      UserError: too much would be dropped; the shards stay in the work folder then.
    """
    source_names = [source.name for source in config.sources]
    corpus = Corpus(
        folder=output / WORK_FOLDER,
        sources=tuple(unit.source for unit in work),
        priorities=tuple(source_names.index(unit.source) for unit in work),
        step=0,
        check=functools.partial(units.check_text, config=config),
    )
    _write_spills(config, work, corpus, fingerprint, workers)
    for k, step in enumerate(config.steps):
        before_step = dataclasses.replace(corpus, step=k)
        if not all(before_step.decisions_path(unit).exists() for unit in range(len(work))):
            step.decide(before_step, workers)
    corpus = dataclasses.replace(corpus, step=len(config.steps))
    summaries = [corpus.folder / f"shard-{unit:05d}.json" for unit in range(len(work))]
    tasks = {path: (corpus, unit) for unit, path in enumerate(summaries)}
    workers.write_files(write_shard, tasks, description="write shards")
    return _publish(config, corpus, summaries, output)


def _write_spills(
    config: CurationConfig,
    work: Sequence[CurationUnit],
    corpus: Corpus,
    fingerprint: str,
    workers: Workers,
) -> None:
    """Writes the spill files that do not exist or are damaged."""
    paths = [corpus.spill_path(unit) for unit in range(len(work))]
    for path in paths:
        if path.exists() and not is_finished(path, fingerprint):
            path.unlink()
    workers.write_files(
        units.write_spill,
        {path: (work[k], config, fingerprint) for k, path in enumerate(paths)},
        description="curate",
        sizes={path: sum(f.text_bytes for f in work[k].files) for k, path in enumerate(paths)},
    )


def _publish(
    config: CurationConfig, corpus: Corpus, summaries: Sequence[Path], output: Path
) -> dict[str, Any]:
    """Moves the shards to the output folder if not too much is dropped; returns the manifest."""
    counts, shards = Counts(), list[dict[str, Any]]()
    removed_lines, read_counts = Counter[str](), Counter[str]()
    for unit, path in enumerate(summaries):
        summary = read_json(path)
        counts.add_json(summary["counts"])
        removed_lines.update(summary["removed_lines"])
        read_counts.update(summary["read_counts"])
        shards.append(
            {
                "file": DOCUMENTS.format(shard_suffix(unit, corpus.num_units)),
                "documents": summary["counts"]["retained_documents"],
                "sha256": summary["sha256"],
            }
        )
    manifest = {
        "bert_jax": __version__,
        "packages": package_versions(config),
        "counts": counts.to_json(),
        "removed_lines": dict(sorted(removed_lines.items())),
        "read_counts": _top_counts(read_counts),
        "shards": shards,
    }
    _check_dropped(config, manifest)
    for unit in range(corpus.num_units):
        for pattern in (DOCUMENTS, LEDGER):
            name = pattern.format(shard_suffix(unit, corpus.num_units))
            # A run that was stopped here has moved some files already.
            if (corpus.folder / name).exists():
                (corpus.folder / name).replace(output / name)
    for path in corpus.output_folder.glob("*"):
        path.replace(output / path.name)
    return manifest


def _top_counts(counts: Counter[str]) -> dict[str, int]:
    """Returns the counts that the manifest has: a large wiki has 100,000 names of templates."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return dict(sorted(ranked[:MAX_READ_COUNTS]))


def _check_dropped(config: CurationConfig, manifest: dict[str, Any]) -> None:
    """Raises an error if more than `max_dropped` of the characters were dropped."""
    counts = manifest["counts"]
    dropped = 1 - counts["retained_characters"] / max(counts["characters"], 1)
    if counts["retained_documents"] and dropped <= config.max_dropped:
        return
    reasons = sum(map(Counter, counts["dropped"].values()), Counter[str]())
    lines = Counter[str](manifest["removed_lines"])
    frequent = f"most documents were dropped by: {_describe_counts(reasons)}"
    if lines:
        frequent += f"; most lines were removed by: {_describe_counts(lines)}"
    if not counts["retained_documents"]:
        raise UserError(
            f"no document is left; {frequent}. Relax or remove these rules or steps in the recipe, "
            "and choose another --output"
        )
    raise UserError(
        f"{dropped:.1%} of the characters would be dropped, more than max_dropped, which is "
        f"{config.max_dropped:.1%}; {frequent}. Relax or remove these rules or steps in "
        "the recipe and choose another --output, or raise max_dropped and run the command again: "
        "finished work is reused"
    )


def _describe_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{reason} ({count:,})" for reason, count in counts.most_common(3))
