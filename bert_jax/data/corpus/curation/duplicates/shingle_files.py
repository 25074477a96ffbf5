"""Stores the shingle sets of some documents of each work unit, for random access."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from bert_jax.atomic_io import atomic_path

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

    A file is mapped into memory when it is first used, and the operating system loads what is read.
    """

    def __init__(self, paths: Sequence[Path]):
        self._paths = paths
        self._files: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def read(self, document: int) -> np.ndarray:
        """Returns the shingles of a document, uint64 [S]."""
        unit = document >> 32
        if unit not in self._files:
            path = self._paths[unit]
            entries = np.fromfile(path, _ENTRY)
            self._files[unit] = entries, np.memmap(path.with_suffix(".sets"), "<u8", "r")
        entries, shingles = self._files[unit]
        position = int(np.searchsorted(entries["document"], np.uint64(document)))
        assert entries["document"][position] == document
        begin = int(entries["end"][position - 1]) if position else 0
        return shingles[begin : int(entries["end"][position])]
