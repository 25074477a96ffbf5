"""Drops equal documents and repeated lines, by sorted rows of keys in files.

Rows of keys are compared in files, so memory is bounded. A file has runs of `RUN_ROWS` rows, each
sorted by all fields. A reader takes the rows of a range of the first field from all runs of all
files by binary search, so that the ranges are chosen when the number of rows is known, and the
result does not depend on how rows are distributed over files.

Raffel et al. 2020, section 2.2, describe spans of three sentences; the code that made the data set
removes single lines, and so does this module. A line is kept in one document, which does not
depend on the order of the input: the one whose id has the smallest hash, in the source that is
first. It is kept once there. The rules for documents are checked again for what remains.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from bert_jax.apps.curate.corpus import (
    Corpus,
    Decision,
    Document,
    document_number,
    documents_of_unit,
    hash_text,
    index_of_document,
)
from bert_jax.apps.curate.workers import Workers
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


TWIN = np.dtype([("document", "<u8"), ("twin", "<u8"), ("similarity", "<f8")])
"""A dropped document and the one that is kept; the similarity is NaN if it is not computed."""

_KEY = np.dtype([("high", "<u8"), ("low", "<u8"), ("document", "<u8")])
_CHUNK_DOCUMENTS = 1 << 14


@dataclass(frozen=True, kw_only=True)
class ExactDuplicates:
    """Drops documents that are equal but for case, white space and compatible characters.

    The first one is kept, in the order of the input: sources by priority, then files by name.
    """

    REASON: ClassVar[str] = "duplicate document"

    def decide(self, corpus: Corpus, workers: Workers) -> None:
        """Writes the decisions about each work unit."""
        keys = corpus.write_units(
            workers, "keys", _write_keys, description="duplicates: hash documents"
        )
        ranges = key_ranges(keys, _KEY)
        twins = corpus.write_key_ranges(
            workers, "twins", _write_twins, ranges, keys, description="duplicates: compare"
        )
        corpus.write_units(
            workers,
            "decisions",
            write_twin_decisions,
            twins,
            self.REASON,
            description="duplicates: decide",
        )


def _write_keys(path: Path, corpus: Corpus, unit: int) -> None:
    """Writes the match key of each document of a work unit."""

    def chunks() -> Iterator[np.ndarray]:
        rows: list[tuple[int, int, int]] = []
        for document in corpus.documents(unit):
            rows.append(_key_row(unit, document))
            if len(rows) == _CHUNK_DOCUMENTS:
                yield np.array(rows, _KEY)
                rows.clear()
        yield np.array(rows, _KEY)

    write_sorted_rows(path, _KEY, chunks())


def _key_row(unit: int, document: Document) -> tuple[int, int, int]:
    key = document.match_key
    return int(key[:16], 16), int(key[16:], 16), document_number(unit, document.index)


def _write_twins(path: Path, keys: list[Path], first: int, last: int) -> None:
    """Writes the documents in a range of keys that are not the first with their key."""
    rows = read_rows(keys, _KEY, first, last)
    starts = group_starts(rows[["high", "low"]])
    repeated = np.flatnonzero(starts < np.arange(len(rows)))
    twins = np.empty(len(repeated), TWIN)
    twins["document"] = rows["document"][repeated]
    twins["twin"] = rows["document"][starts[repeated]]
    twins["similarity"] = np.nan
    write_sorted_rows(path, TWIN, [twins])


def write_twin_decisions(
    path: Path, corpus: Corpus, unit: int, twin_files: Sequence[Path], reason: str
) -> None:
    """Writes the decisions about a work unit.

    Args:
      path: `corpus.decisions_path(unit)`.
      twin_files: sorted rows of `TWIN`, with the documents of all units.
      reason: why the documents are dropped.
    """
    assert path == corpus.decisions_path(unit)
    rows = read_rows(twin_files, TWIN, *documents_of_unit(unit))
    ids = corpus.read_ids(rows["twin"])
    decisions = {
        index_of_document(document): Decision(
            reason=reason, value=None if np.isnan(similarity) else similarity, twin=ids[twin]
        )
        for document, twin, similarity in rows.tolist()
    }
    corpus.write_decisions(unit, decisions)


_LINE_KEY = np.dtype([("key", "<u8"), ("rank", "<u8"), ("document", "<u8")])
_REMOVED = np.dtype([("document", "<u8"), ("key", "<u8")])
_RANK_BITS = 48

# The key of each part of a text that is not blank, with the numbers of its lines.
_Parts = Callable[[str], Iterator[tuple[int, range]]]


def line_parts(text: str) -> Iterator[tuple[int, range]]:
    """Yields (key, numbers) of the lines; lines are equal but for case and spaces at both ends."""
    for number, line in enumerate(text.split("\n")):
        if stripped := line.strip().lower():
            yield hash_text(stripped), range(number, number + 1)


def paragraph_parts(text: str) -> Iterator[tuple[int, range]]:
    """Yields (key, numbers) of the paragraphs, which blank lines separate."""
    lines = [line.strip().lower() for line in text.split("\n")]
    begin = 0
    for end in [*(i for i, line in enumerate(lines) if not line), len(lines)]:
        if begin < end:
            yield hash_text(" ".join(lines[begin:end])), range(begin, end)
        begin = end + 1


@dataclass(frozen=True, kw_only=True)
class RepeatedLines:
    """Keeps each line in one document of the corpus only."""

    REASON: ClassVar[str] = "repeated line"
    PARTS: ClassVar[_Parts] = staticmethod(line_parts)

    def decide(self, corpus: Corpus, workers: Workers) -> None:
        """Writes the decisions about each work unit."""
        what = f"{self.REASON}s"
        keys = corpus.write_units(
            workers, "keys", _write_line_keys, self, description=f"{what}: hash"
        )
        ranges = key_ranges(keys, _LINE_KEY)
        removed = corpus.write_key_ranges(
            workers, "removed", _write_removed, ranges, keys, description=f"{what}: compare"
        )
        corpus.write_units(
            workers, "decisions", _write_decisions, self, removed, description=f"{what}: remove"
        )


@dataclass(frozen=True, kw_only=True)
class RepeatedParagraphs(RepeatedLines):
    """Keeps each paragraph in one document of the corpus only; blank lines separate paragraphs."""

    REASON: ClassVar[str] = "repeated paragraph"
    PARTS: ClassVar[_Parts] = staticmethod(paragraph_parts)


def _repeated_path(keys: Path) -> Path:
    """Returns the path of the keys that one document has several times, beside all keys."""
    return keys.with_suffix(".repeated")


def _write_line_keys(path: Path, corpus: Corpus, unit: int, config: RepeatedLines) -> None:
    """Writes the distinct keys of each document of a work unit."""
    repeated_rows: list[np.ndarray] = []

    def chunks() -> Iterator[np.ndarray]:
        for document in corpus.documents(unit):
            found = np.array([key for key, _ in config.PARTS(document.text)], np.uint64)
            keys, counts = np.unique(found, return_counts=True)
            number = document_number(unit, document.index)
            rows = np.empty(len(keys), _LINE_KEY)
            rows["key"] = keys
            rows["rank"] = _rank(corpus.priorities[unit], document.id)
            rows["document"] = number
            yield rows
            several = keys[counts > 1]
            inner = np.empty(len(several), _REMOVED)
            inner["document"], inner["key"] = number, several
            repeated_rows.append(inner)

    # The file at `path` is the last that is written: a stopped run repeats both or none.
    write_sorted_rows(path.with_suffix(".unfinished"), _LINE_KEY, chunks())
    write_sorted_rows(_repeated_path(path), _REMOVED, repeated_rows)
    path.with_suffix(".unfinished").replace(path)


def _rank(priority: int, document_id: str) -> int:
    return priority << _RANK_BITS | hash_text(document_id) >> (64 - _RANK_BITS)


def _write_removed(path: Path, keys: list[Path], first: int, last: int) -> None:
    """Writes the keys in a range, for the documents that are not the best-ranked with the key."""
    rows = read_rows(keys, _LINE_KEY, first, last)
    removed = rows[group_starts(rows["key"]) < np.arange(len(rows))]
    write_sorted_rows(path, _REMOVED, [removed[["document", "key"]].astype(_REMOVED)])


def _write_decisions(
    path: Path, corpus: Corpus, unit: int, config: RepeatedLines, removed: list[Path]
) -> None:
    """Writes which lines of the documents of a work unit are removed."""
    assert path == corpus.decisions_path(unit)
    in_others = read_rows(removed, _REMOVED, *documents_of_unit(unit))
    in_itself = read_rows([_repeated_path(corpus.path("keys", unit))], _REMOVED)
    edited = np.union1d(in_others["document"], in_itself["document"])
    documents = set(map(index_of_document, edited.tolist()))
    decisions: dict[int, Decision] = {}
    for document in corpus.documents(unit) if documents else ():
        if document.index not in documents:
            continue
        number = np.uint64(document_number(unit, document.index))
        begin, end = np.searchsorted(in_others["document"], [number, number + np.uint64(1)])
        seen = set(in_others["key"][begin:end].tolist())
        lines: list[int] = []
        for key, numbers in config.PARTS(document.text):
            if key in seen:
                lines.extend(numbers)
            seen.add(key)
        decisions[document.index] = corpus.edit(document, lines, config.REASON)
    corpus.write_decisions(unit, decisions)
