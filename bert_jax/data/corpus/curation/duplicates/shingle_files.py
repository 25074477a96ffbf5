"""Stores the shingle sets of some documents of each work unit, for random access."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from bert_jax.atomic_io import atomic_path

MAX_OPEN_FILES = 128
"""Each open file is a file descriptor, of which a process has about 1,000."""

_ENTRY = np.dtype([("document", "<u8"), ("end", "<u8")])


def write_shingles(path: Path, sets: Iterable[tuple[int, np.ndarray]]) -> None:
    """Writes shingle sets to `<path>.sets`, and then their documents and ends to `path`.

    Args:
      sets: (number of the document, hashes uint64 [S]), by ascending numbers.
    """
    entries: list[tuple[int, int]] = []
    end = 0
    with atomic_path(path.with_suffix(".sets")) as tmp_path, tmp_path.open("wb") as file:
        for document, shingles in sets:
            shingles.tofile(file)
            end += len(shingles)
            entries.append((document, end))
    with atomic_path(path) as tmp_path, tmp_path.open("wb") as file:
        np.array(entries, _ENTRY).tofile(file)


class ShingleFiles:
    """Reads the shingle sets of documents from the files of all work units.

    A file is mapped into memory when it is used, and the operating system loads what is read. The
    files that were used last stay open.
    """

    def __init__(self, paths: Sequence[Path]):
        self._paths = paths
        self._files = OrderedDict[int, tuple[np.ndarray, np.ndarray]]()

    def read(self, document: int) -> np.ndarray:
        """Returns the shingles of a document, uint64 [S]."""
        entries, shingles = self._open(document >> 32)
        position = int(np.searchsorted(entries["document"], np.uint64(document)))
        assert entries["document"][position] == document
        begin = int(entries["end"][position - 1]) if position else 0
        # A copy, because a part of the map would hold its file open.
        return np.array(shingles[begin : int(entries["end"][position])])

    def _open(self, unit: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the entries and the shingles of a work unit; closes the file unused longest."""
        if unit not in self._files:
            if len(self._files) >= MAX_OPEN_FILES:
                self._files.popitem(last=False)
            path = self._paths[unit]
            entries = np.fromfile(path, _ENTRY)
            self._files[unit] = entries, np.memmap(path.with_suffix(".sets"), "<u8", "r")
        self._files.move_to_end(unit)
        return self._files[unit]
