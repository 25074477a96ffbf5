"""Sorts fixed-size rows on disk, so that equal keys of all work units meet in bounded memory.

A file has runs of `RUN_ROWS` rows, each sorted by all fields. A reader takes the rows of a range of
the first field from all runs of all files by binary search, so that the ranges are chosen when the
number of rows is known, and the result does not depend on how rows are distributed over files.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_path

RUN_ROWS = 1 << 20
"""Rows that are sorted in memory before they are written."""
PARTITION_ROWS = 1 << 21
"""About how many rows a partition of hashed keys has."""
MAX_KEY = 2**64 - 1


# Sorted on disk, so that memory does not depend on the size of the corpus, and the result does not
# depend on how documents are divided into units. A file that exists is never written again, which
# is all that resuming needs.
def write_sorted_rows(path: Path, dtype: np.dtype, chunks: Iterable[np.ndarray]) -> None:
    """Writes rows to a file, atomically.

    Args:
      dtype: structured; the first field is uint64.
      chunks: arrays [R] of `dtype`.
    """
    buffered, num_buffered = list[np.ndarray](), 0
    with atomic_path(path) as tmp_path, tmp_path.open("wb") as file:
        for chunk in chunks:
            buffered.append(chunk)
            num_buffered += len(chunk)
            if num_buffered >= RUN_ROWS:
                rows = np.concatenate(buffered)
                whole = len(rows) - len(rows) % RUN_ROWS
                for start in range(0, whole, RUN_ROWS):
                    sort_rows(rows[start : start + RUN_ROWS]).tofile(file)
                buffered, num_buffered = [rows[whole:]], len(rows) - whole
        if num_buffered:
            sort_rows(np.concatenate(buffered)).tofile(file)
        elif not buffered:
            np.zeros(0, dtype).tofile(file)


def sort_rows(rows: np.ndarray) -> np.ndarray:
    """Returns rows sorted by all fields, the first field first."""
    assert rows.dtype.names
    return rows[np.lexsort([rows[name] for name in reversed(rows.dtype.names)])]


def read_rows(
    paths: Iterable[Path], dtype: np.dtype, first: int = 0, last: int = MAX_KEY
) -> np.ndarray:
    """Returns the rows of several files whose first field is in a range, sorted by all fields.

    Args:
      first, last: the range, both inclusive.
    """
    assert dtype.names
    found = [np.zeros(0, dtype)]
    for path in paths:
        rows = _map(path, dtype)
        for start in range(0, len(rows), RUN_ROWS):
            run = rows[start : start + RUN_ROWS]
            keys = run[dtype.names[0]]
            begin = np.searchsorted(keys, np.uint64(first), "left")
            end = np.searchsorted(keys, np.uint64(last), "right")
            if begin < end:
                found.append(np.array(run[begin:end]))
    return sort_rows(np.concatenate(found))


def key_ranges(paths: Sequence[Path], dtype: np.dtype) -> list[tuple[int, int]]:
    """Divides all keys into ranges (first, last) with about `PARTITION_ROWS` rows each.

    The first field must be a hash, whose values are distributed evenly.
    """
    num_rows = sum(path.stat().st_size for path in paths) // dtype.itemsize
    count = max(1, -(-num_rows // PARTITION_ROWS))
    bounds = [(MAX_KEY + 1) * i // count for i in range(count + 1)]
    return [(begin, end - 1) for begin, end in itertools.pairwise(bounds)]


def group_starts(keys: np.ndarray) -> np.ndarray:
    """Returns for each of the sorted keys [R] the position of the first equal key, int64 [R]."""
    if not len(keys):
        return np.zeros(0, np.int64)
    is_first = np.concatenate(([True], keys[1:] != keys[:-1]))
    return np.maximum.accumulate(np.where(is_first, np.arange(len(keys)), 0))


def iter_chunks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yields rows in chunks of at most `RUN_ROWS`."""
    for start in range(0, len(rows), RUN_ROWS):
        yield rows[start : start + RUN_ROWS]


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    """Returns a view of the rows of a file, which is read where it is used."""
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise UserError(
            f"{path}: damaged ({size:,} bytes, expected a multiple of {dtype.itemsize}); delete it "
            "and run the same command again"
        )
    return np.memmap(path, dtype, "r") if size else np.zeros(0, dtype)
