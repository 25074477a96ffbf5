"""Files and folders that a reader sees whole or not at all: written aside, then renamed."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A path beside `path` to write a file or a folder to; nothing is there yet.

    At the end what was written moves to `path`, a file once its bytes are on the disk; after an
    error it is removed. The path is this process's own: what another leaves behind when it is
    killed stays, as `.NAME.PID.partial`, and two threads may not write to one `path`.

    Raises:
      OSError: it cannot be written or moved; as a folder, if `path` is one that is not empty.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    _remove(aside)
    try:
        yield aside
        if aside.is_file():
            with aside.open("rb+") as file:
                os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        _remove(aside)


def write_aside(path: Path, content: str | bytes) -> None:
    """Writes a file aside and moves it to `path`."""
    with written_aside(path) as aside:
        aside.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, data: Any) -> None:
    """Writes indented JSON aside and moves it to `path`."""
    write_aside(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        # Its parent may be a file, or gone: what was tried says so, not the clearing up.
        with contextlib.suppress(OSError):
            path.unlink()
