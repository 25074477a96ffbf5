"""Files and folders that a reader sees whole or not at all: written aside, then renamed."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A path beside `path` to write a file or a folder to; nothing is there yet.

    At the end what was written moves to `path`, a file once its bytes are on the disk; after an
    error it is removed. The path is this process's own: what another leaves behind when it is
    killed stays, as `.NAME.PID.partial`, and two threads may not write to one `path`.

    Raises:
      OSError: it cannot be written or moved; as a folder, if `path` is one that is not empty.
    """
    partial_path = path.with_name(f".{path.name}.{os.getpid()}.partial")
    _remove(partial_path)
    try:
        yield partial_path
        if partial_path.is_file():
            with partial_path.open("rb+") as file:
                os.fsync(file.fileno())
        os.replace(partial_path, path)
    finally:
        _remove(partial_path)


def atomic_write(path: Path, content: str | bytes) -> None:
    """Writes a file aside and moves it to `path`."""
    with atomic_path(path) as partial_path:
        partial_path.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, data: Any) -> None:
    """Writes indented JSON aside and moves it to `path`."""
    atomic_write(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        # Its parent may be a file, or gone: what was tried says so, not the clearing up.
        with contextlib.suppress(OSError):
            path.unlink()
