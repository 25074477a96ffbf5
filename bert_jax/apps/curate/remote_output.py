"""Writes a curated corpus to a remote file system: in a local folder first, then copied.

The local folder is in ~/.cache/bert_jax/curate (or XDG_CACHE_HOME) and has a name that depends on
the address of the output, so the same command continues after a stop. It is removed at the end; the
lock file beside it stays.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Generator
from pathlib import Path

from bert_jax.apps.curate.curate import MANIFEST_FILE, PLAN_FILE
from bert_jax.data.corpus.contamination.found_items import DOCUMENTS
from bert_jax.data.corpus.source_files import (
    download,
    is_remote,
    list_remote_names,
    make_remote_folder,
    open_file_system,
    renamed_in_errors,
    upload,
)
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import make_folder
from bert_jax.io.file_lock import AlreadyLockedError, acquire_lock
from bert_jax.io.json_io import read_json

_DOCUMENTS = DOCUMENTS.format("*")
# The documents of a finished corpus are not needed for its report.
_DOWNLOADED = (PLAN_FILE, MANIFEST_FILE, "ledger-*", "contamination*", "*.html")


@contextlib.contextmanager
def local_output(output: str) -> Generator[Path]:
    """Yields the folder to write to, and copies it to `output` if that is remote.

    The manifest is copied last: a remote folder with a manifest is complete.

    Raises:
      UserError: the remote folder cannot be read or written, has other files, or another command
        writes there.
    """
    if not is_remote(output):
        yield Path(output)
        return
    url = output.rstrip("/")
    key = hashlib.sha256(url.encode()).hexdigest()[:16]
    open_file_system(url)  # raises for a wrong address before anything is written
    folder = _cache_folder() / key / url.rpartition("/")[2]  # the report has this name as its title
    make_folder(_cache_folder())
    try:
        lock = acquire_lock(_cache_folder() / f"{key}.lock")
    except AlreadyLockedError:
        raise UserError(
            f"--output {url}: another process is writing there; wait for it or choose another "
            "folder"
        ) from None
    with lock:
        if (folder / MANIFEST_FILE).exists() and not any(folder.glob(_DOCUMENTS)):
            # Left by a command that failed over a finished corpus, which may be gone since.
            shutil.rmtree(folder)
        make_folder(folder)
        finished = _fetch_finished(url, folder)
        with renamed_in_errors(str(folder), f"{url} (local folder {folder})"):
            yield folder
        if not finished:
            _check_remote_plan(url, folder)
        names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
        _upload(folder, names - finished, url)
        shutil.rmtree(folder.parent)


def _upload(folder: Path, names: set[str], url: str) -> None:
    make_remote_folder(url)
    for name in sorted(names, key=lambda name: (name == MANIFEST_FILE, name != PLAN_FILE, name)):
        upload(folder / name, f"{url}/{name}")


def _check_remote_plan(url: str, folder: Path) -> None:
    """Raises a UserError if another machine has written another corpus to `url` since the start."""
    if PLAN_FILE not in list_remote_names(url):
        return
    path = folder / f".remote-{PLAN_FILE}"
    download(f"{url}/{PLAN_FILE}", path)
    if read_json(path) != read_json(folder / PLAN_FILE):
        raise UserError(
            f"--output {url}: another command has written a corpus with other settings there; "
            "choose another --output"
        )


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "bert_jax" / "curate"


def _fetch_finished(url: str, folder: Path) -> set[str]:
    """Copies what describes a corpus that an earlier run wrote to the remote folder.

    Returns:
      The names of the remote files if the corpus is complete, else none.
    """
    names = list_remote_names(url)
    if names and PLAN_FILE not in names:
        raise UserError(
            f"--output {url}: not empty and not a curated corpus (it contains {min(names)}); "
            "choose a new folder"
        )
    is_complete = MANIFEST_FILE in names
    patterns = _DOWNLOADED if is_complete else (PLAN_FILE,)
    for name in sorted(names):
        is_needed = is_complete or not (folder / name).exists()
        if is_needed and any(map(Path(name).match, patterns)):
            download(f"{url}/{name}", folder / name)
    return names if is_complete else set()
