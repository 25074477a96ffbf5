"""Stores the state of the fake cloud between commands in state.json, under a lock."""

import contextlib
import fcntl
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

KINDS = ("queue", "nodes", "counts")


class State:
    """Stores resources by kind and by `zone/name`."""

    def __init__(self, root: Path):
        self._file, self._lock = root / "state.json", root / "state.lock"

    @contextlib.contextmanager
    def changing(self) -> Generator[dict[str, dict[str, Any]]]:
        """Yields the whole state, and writes it back at the end, also when the command fails."""
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            data = json.loads(self._file.read_text()) if self._file.exists() else {}
            data = {kind: data.get(kind, {}) for kind in KINDS}
            try:
                yield data
            finally:
                temporary = self._file.with_suffix(".tmp")
                temporary.write_text(json.dumps(data, indent=1))
                os.replace(temporary, self._file)

    def spend(self, key: str, row: dict[str, Any]) -> bool:
        """Returns whether a script entry with a limited number of uses applies once more."""
        if "times" not in row:
            return True
        with self.changing() as data:
            used = data["counts"].get(key, 0)
            data["counts"][key] = used + 1
        return used < row["times"]
