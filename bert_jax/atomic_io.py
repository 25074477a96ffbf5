"""Writes files and folders atomically: to a temporary path first, then renamed.

A reader sees the complete file or none.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path in the same folder, to write a file or a folder to.

    When the `with` block ends, what was written is renamed to `path`; a file is synced to disk
    before. After an error it is removed. The temporary name, `.NAME.PID.partial`, is unique to the
    process: a killed process leaves its file behind, and two threads must not write the same path.

    Raises:
      OSError: writing or renaming failed, or `path` is a folder that is not empty.
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
    """Writes a file atomically."""
    with atomic_path(path) as partial_path:
        partial_path.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, data: Any) -> None:
    """Writes indented JSON atomically."""
    atomic_write(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        # The parent may not exist or may be a file; the error of the caller is the one to show.
        with contextlib.suppress(OSError):
            path.unlink()
