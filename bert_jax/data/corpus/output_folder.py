"""The folder that a prepare writes into: locked, and checked against an earlier request."""

import contextlib
import fcntl
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax import config_lib as configs
from bert_jax.atomic_io import atomic_path, write_json
from bert_jax.data.corpus.manifest import MANIFEST_FILE, PLAN_FILE, TOKENIZER_FOLDER, read_json
from bert_jax.data.corpus.plan import PreparePlan
from bert_jax.errors import UserError
from bert_jax.text.tokenizer import load_tokenizer

LOCK_FILE = ".lock"
# What a prepare writes; --overwrite removes these and nothing else.
OWNED_PATTERNS = (
    "documents-*",
    MANIFEST_FILE,
    PLAN_FILE,
    TOKENIZER_FOLDER,
    LOCK_FILE,
    ".*.partial",
)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Holds the folder against a second prepare; the kernel lets go when the process dies.

    Raises:
      UserError: another process is preparing into this folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK_FILE, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{folder}: another process is preparing a corpus here; wait for it or choose "
                "another --output"
            ) from None
        yield
    # The name stays: removing it would let a third process lock a file that nobody sees.


def open_output_folder(folder: Path, plan: PreparePlan, *, overwrite: bool) -> None:
    """Makes `folder` one that this plan writes into, keeping what the same plan wrote earlier.

    Raises:
      UserError: it holds something else, or a corpus from another request (the fields are named).
    """
    plan_path = folder / PLAN_FILE
    if overwrite:
        remove_corpus(folder)
    if plan_path.is_file():
        differences = configs.diff(read_json(plan_path), plan.to_json())
        if differences and any(folder.glob("documents-*")):
            raise UserError(_format_differences(folder, differences))
        if differences:
            remove_corpus(folder)
    elif unexpected_files := [
        p.name for p in folder.iterdir() if p.name != LOCK_FILE and not _is_owned(p)
    ]:
        raise UserError(
            f"{folder}: not empty and not a prepared corpus (it holds {unexpected_files[0]}); "
            "choose a new folder"
        )
    for leftover in folder.glob(".*.partial"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    if not (folder / TOKENIZER_FOLDER).is_dir():
        with atomic_path(folder / TOKENIZER_FOLDER) as tmp_path:
            plan.tokenizer.save(tmp_path)
    if load_tokenizer(folder / TOKENIZER_FOLDER).fingerprint != plan.tokenizer.fingerprint:
        raise UserError(
            f"{folder / TOKENIZER_FOLDER}: changed since it was written here; give --overwrite "
            "to start again"
        )
    if not plan_path.is_file():
        write_json(plan_path, plan.to_json())


def remove_corpus(folder: Path) -> None:
    """Removes an earlier prepared corpus, manifest first, and nothing else."""
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    for path in folder.iterdir():
        if _is_owned(path) and path.name != LOCK_FILE:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_owned(path: Path) -> bool:
    return any(path.match(pattern) for pattern in OWNED_PATTERNS)


def _format_differences(folder: Path, differences: Sequence[tuple[str, Any, Any]]) -> str:
    lines = [f"{folder}: holds a corpus that was prepared otherwise:"]
    for name, old, new in differences:
        if name == "source_digest":
            lines.append("  source: files were added, taken away or changed since")
        else:
            lines.append(f"  {name}: was {old!r}, now {new!r}")
    lines.append("choose another --output, go back to the old settings, or give --overwrite")
    return "\n".join(lines)
