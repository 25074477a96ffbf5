"""Writes a curated corpus to a remote file system: in a local folder first, then copied.

The local folder is in ~/.cache/bert_jax/curate (or XDG_CACHE_HOME) and has a name that depends on
the address of the output, so the same command continues after a stop. It is removed at the end.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Generator
from pathlib import Path

from bert_jax.atomic_io import make_folder
from bert_jax.data.corpus.curation.curate import MANIFEST_FILE, PLAN_FILE
from bert_jax.data.corpus.source_files import (
    download,
    is_remote,
    list_remote_names,
    make_remote_folder,
    renamed_in_errors,
    upload,
)
from bert_jax.errors import UserError

# The documents of a finished corpus are not needed for its report.
_DOWNLOADED = (PLAN_FILE, MANIFEST_FILE, "ledger-*", "contamination*", "*.html")


@contextlib.contextmanager
def local_output(output: str) -> Generator[Path]:
    """Yields the folder to write to, and copies it to `output` if that is remote.

    The manifest is copied last: a remote folder with a manifest is complete.

    Raises:
      UserError: the remote folder cannot be read or written, or has other files.
    """
    if not is_remote(output):
        yield Path(output)
        return
    url = output.rstrip("/")
    key = hashlib.sha256(url.encode()).hexdigest()[:16]
    folder = _cache_folder() / key / url.rpartition("/")[2]  # the report has this name as its title
    make_folder(folder)
    finished = _fetch_finished(url, folder)
    with renamed_in_errors(str(folder), f"{url} (local folder {folder})"):
        yield folder
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    names -= finished
    make_remote_folder(url)
    for name in sorted(names, key=lambda name: (name == MANIFEST_FILE, name != PLAN_FILE, name)):
        upload(folder / name, f"{url}/{name}")
    shutil.rmtree(folder.parent)


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
