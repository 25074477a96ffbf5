"""Locks the output folder of `bert-jax prepare` and compares it with an earlier run's plan."""

import contextlib
import shutil
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.config import config_lib as configs
from bert_jax.data.corpus.contamination.found_items import ITEMS_FILE
from bert_jax.data.corpus.manifest import MANIFEST_FILE, PLAN_FILE, TOKENIZER_FOLDER
from bert_jax.data.corpus.plan import PreparePlan
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_path, make_folder, write_json
from bert_jax.io.file_lock import AlreadyLockedError, acquire_lock
from bert_jax.io.json_io import read_json
from bert_jax.text.load_tokenizer import load_tokenizer

LOCK_FILE = ".lock"
# The files of a prepared corpus; --overwrite removes these and no others.
OWNED_PATTERNS = (
    "documents-*",
    ITEMS_FILE,
    MANIFEST_FILE,
    PLAN_FILE,
    TOKENIZER_FOLDER,
    LOCK_FILE,
    ".*.partial",
)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Generator[None]:
    """Locks the folder against other runs; the kernel releases the lock when the process ends.

    Raises:
      UserError: another process is writing a corpus to this folder.
    """
    make_folder(folder)
    try:
        lock = acquire_lock(folder / LOCK_FILE)
    except AlreadyLockedError:
        raise UserError(
            f"--output {folder}: another process is writing a corpus there; wait for it or "
            "choose another folder"
        ) from None
    with lock:
        yield


def open_output_folder(folder: Path, plan: PreparePlan, *, overwrite: bool) -> None:
    """Prepares `folder` for a plan and keeps the shards that the same plan wrote earlier.

    Raises:
      UserError: the folder contains other files, or a corpus of another plan (the message lists
        the fields that differ).
    """
    plan_path = folder / PLAN_FILE
    if overwrite:
        remove_corpus(folder)
    if plan_path.is_file():
        differences = configs.diff(read_json(plan_path), plan.to_json())
        # A plan without any shard is a first attempt with a mistake, which may be corrected without
        # a flag.
        if differences and any(folder.glob("documents-*")):
            raise UserError(_format_differences(folder, differences))
        if differences:
            remove_corpus(folder)
    elif unexpected_files := [
        p.name for p in folder.iterdir() if p.name != LOCK_FILE and not _is_owned(p)
    ]:
        raise UserError(
            f"--output {folder}: not empty and not a prepared corpus (it contains "
            f"{unexpected_files[0]}); choose a new folder"
        )
    for leftover in folder.glob(".*.partial"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    if not (folder / TOKENIZER_FOLDER).is_dir():
        with atomic_path(folder / TOKENIZER_FOLDER) as tmp_path:
            plan.tokenizer.save(tmp_path)
    if load_tokenizer(folder / TOKENIZER_FOLDER).fingerprint != plan.tokenizer.fingerprint:
        raise UserError(
            f"{folder / TOKENIZER_FOLDER}: the tokenizer was changed after it was written here; "
            "use --overwrite to start again"
        )
    if not plan_path.is_file():
        write_json(plan_path, plan.to_json())


def remove_corpus(folder: Path) -> None:
    """Removes a prepared corpus and no other files; the manifest is removed first."""
    # First, so that a folder from which only some shards were removed counts as unfinished.
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    for path in folder.iterdir():
        if _is_owned(path) and path.name != LOCK_FILE:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_owned(path: Path) -> bool:
    return any(path.match(pattern) for pattern in OWNED_PATTERNS)


def _format_differences(folder: Path, differences: Sequence[tuple[str, Any, Any]]) -> str:
    lines = [f"--output {folder}: contains a corpus that was prepared with other settings:"]
    for name, old, new in differences:
        if name == "source_digest":
            lines.append("  source: files were added, removed or changed")
        else:
            lines.append(f"  {name}: was {old!r}, now {new!r}")
    lines.append(
        "choose another --output, use the old settings, or replace the corpus with --overwrite"
    )
    return "\n".join(lines)
