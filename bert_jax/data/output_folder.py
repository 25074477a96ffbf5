"""The folder that a prepare writes into: locked, and checked against an earlier request."""

import contextlib
import fcntl
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax import config as configs
from bert_jax.aside import write_json, written_aside
from bert_jax.data.manifest import MANIFEST, PLAN, VOCABULARY, read_json
from bert_jax.data.workplan import Plan
from bert_jax.errors import UserError
from bert_jax.text.vocabulary import load_vocabulary

LOCK = ".lock"
# What a prepare writes; --overwrite removes these and nothing else.
OWN_FILES = ("documents-*", MANIFEST, PLAN, VOCABULARY, LOCK, ".*.partial")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder against a second prepare; the kernel lets go when the process dies.

    Raises:
      UserError: another process is preparing into this folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{folder}: another process is preparing a corpus here; wait for it or choose "
                "another --output"
            ) from None
        yield
    # The name stays: removing it would let a third process lock a file that nobody sees.


def open_folder(folder: Path, plan: Plan, *, overwrite: bool) -> None:
    """Makes `folder` one that this plan writes into, keeping what the same plan wrote earlier.

    Raises:
      UserError: it holds something else, or a corpus from another request (the fields are named).
    """
    plan_path = folder / PLAN
    if overwrite:
        clear(folder)
    if plan_path.is_file():
        differing = configs.diff(read_json(plan_path), plan.to_json())
        if differing and any(folder.glob("documents-*")):
            raise UserError(_refusal(folder, differing))
        if differing:
            clear(folder)
    elif strangers := [p.name for p in folder.iterdir() if p.name != LOCK and not _own(p)]:
        raise UserError(
            f"{folder}: not empty and not a prepared corpus (it holds {strangers[0]}); choose a "
            "new folder"
        )
    for leftover in folder.glob(".*.partial"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    if not (folder / VOCABULARY).is_dir():
        with written_aside(folder / VOCABULARY) as aside:
            plan.vocabulary.save(aside)
    if load_vocabulary(folder / VOCABULARY).fingerprint != plan.vocabulary.fingerprint:
        raise UserError(
            f"{folder / VOCABULARY}: changed since it was written here; give --overwrite to start "
            "again"
        )
    if not plan_path.is_file():
        write_json(plan_path, plan.to_json())


def clear(folder: Path) -> None:
    """Removes an earlier prepared corpus, manifest first, and nothing else."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for path in folder.iterdir():
        if _own(path) and path.name != LOCK:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _own(path: Path) -> bool:
    return any(path.match(pattern) for pattern in OWN_FILES)


def _refusal(folder: Path, differing: Sequence[tuple[str, Any, Any]]) -> str:
    lines = [f"{folder}: holds a corpus that was prepared otherwise:"]
    for name, old, new in differing:
        if name == "source_digest":
            lines.append("  source: files were added, taken away or changed since")
        else:
            lines.append(f"  {name}: was {old!r}, now {new!r}")
    lines.append("choose another --output, go back to the old settings, or give --overwrite")
    return "\n".join(lines)
