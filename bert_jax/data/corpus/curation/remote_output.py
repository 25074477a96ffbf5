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
    _fetch_finished(url, folder)
    fetched = {path.name for path in folder.iterdir()}
    with renamed_in_errors(str(folder), f"{url} (local folder {folder})"):
        yield folder
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if MANIFEST_FILE in fetched and (folder / MANIFEST_FILE).is_file():
        names -= fetched
    make_remote_folder(url)
    for name in sorted(names, key=lambda name: (name == MANIFEST_FILE, name != PLAN_FILE, name)):
        upload(folder / name, f"{url}/{name}")
    shutil.rmtree(folder.parent)


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "bert_jax" / "curate"


def _fetch_finished(url: str, folder: Path) -> None:
    """Copies what describes a corpus that an earlier run wrote to the remote folder."""
    names = list_remote_names(url)
    if names and PLAN_FILE not in names:
        raise UserError(
            f"--output {url}: not empty and not a curated corpus (it contains {min(names)}); "
            "choose a new folder"
        )
    if MANIFEST_FILE in names:
        wanted = {name for name in names if any(map(Path(name).match, _DOWNLOADED))}
    else:
        wanted = {PLAN_FILE} & names
    for name in sorted(wanted):
        if not (folder / name).exists():
            download(f"{url}/{name}", folder / name)
