"""Drops documents that are equal but for case, white space and compatible characters."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from bert_jax.data.corpus.curation.corpus import (
    Corpus,
    Decision,
    Document,
    document_number,
    documents_of_unit,
    index_of_document,
)
from bert_jax.data.corpus.curation.duplicates.sorted_rows import (
    group_starts,
    key_ranges,
    read_rows,
    write_sorted_rows,
)
from bert_jax.data.corpus.curation.workers import Workers

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
        units = range(corpus.num_units)
        keys = [corpus.path("keys", unit) for unit in units]
        workers.write_files(
            _write_keys,
            {path: (corpus, unit) for unit, path in enumerate(keys)},
            description="duplicates: hash documents",
        )
        ranges = key_ranges(keys, _KEY)
        twins = [corpus.path("twins", number) for number in range(len(ranges))]
        workers.write_files(
            _write_twins,
            {path: (keys, *ranges[number]) for number, path in enumerate(twins)},
            description="duplicates: compare",
        )
        workers.write_files(
            write_twin_decisions,
            {corpus.decisions_path(unit): (corpus, unit, twins, self.REASON) for unit in units},
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
