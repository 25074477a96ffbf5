"""Defines the ledger: what happened to each document of the input, as Parquet files.

Each work unit writes one file, with one row for each document, in the order of the input.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bert_jax.data.corpus.contamination.found_items import import_pyarrow, make_table, row_schema
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_path

RETAINED = ""
"""The reason of a document that is kept."""
GROUP_ROWS = 100_000
"""Rows of a ledger that are compressed together, and that are in memory while it is written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerRow:
    """Describes one document of the input.

    Attributes:
      id: the name of the source, the file and the number in the file, "books/emma.txt:1".
      source: the name of the source.
      digest: BLAKE2b of the raw text, 128 bits in hexadecimal digits.
      characters: length of the raw text.
      retained_characters: length of the text that was kept; 0 if the document was dropped.
      reason: why it was dropped; "" if it was kept.
      value: the value of the signal that broke a rule, or the similarity of a near duplicate to its
        twin; None for other reasons.
      twin: of a duplicate, the id of the document that was kept instead; if a later step dropped
        that one, its own row has the reason. Of a contaminated document, SET/SPLIT/ITEM, and
        `value` is the fraction of the item that was found. "" for other reasons.
    """

    id: str
    source: str
    digest: str
    characters: int
    retained_characters: int
    reason: str = RETAINED
    value: float | None = None
    twin: str = ""


@dataclass
class Counts:
    """Adds up documents and characters; `dropped` counts documents by source and reason."""

    documents: int = 0
    characters: int = 0
    retained_documents: int = 0
    retained_characters: int = 0
    dropped: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, row: LedgerRow) -> None:
        """Adds one document."""
        self.documents += 1
        self.characters += row.characters
        if row.reason == RETAINED:
            self.retained_documents += 1
            self.retained_characters += row.retained_characters
        else:
            self.dropped.setdefault(row.source, Counter())[row.reason] += 1

    def add_json(self, counts: dict[str, Any]) -> None:
        """Adds the counts of one shard, as `to_json` returns them."""
        self.documents += counts["documents"]
        self.characters += counts["characters"]
        self.retained_documents += counts["retained_documents"]
        self.retained_characters += counts["retained_characters"]
        for source, reasons in counts["dropped"].items():
            self.dropped.setdefault(source, Counter()).update(reasons)

    def to_json(self) -> dict[str, Any]:
        """Returns the counts as JSON values, reasons sorted by name."""
        dropped = {source: dict(sorted(found.items())) for source, found in self.dropped.items()}
        return asdict(self) | {"dropped": dropped}


@contextlib.contextmanager
def open_ledger(path: Path) -> Generator[Callable[[LedgerRow], None]]:
    """Yields a function that adds a row to the ledger of one work unit; writes it atomically.

    At most `GROUP_ROWS` rows are in memory: each group of rows is written when it is full.
    """
    _, parquet = import_pyarrow()
    rows: list[LedgerRow] = []

    def write_group() -> None:
        writer.write_table(make_table(LedgerRow, rows))
        rows.clear()

    def add_row(row: LedgerRow) -> None:
        rows.append(row)
        if len(rows) == GROUP_ROWS:
            write_group()

    with atomic_path(path) as tmp_path:
        with parquet.ParquetWriter(tmp_path, row_schema(LedgerRow), compression="zstd") as writer:
            yield add_row
            if rows:
                write_group()


def read_ledger(paths: Iterable[Path]) -> list[LedgerRow]:
    """Reads the rows of ledger files, in order.

    Raises:
      UserError: a file is missing or is no ledger.
    """
    pyarrow, parquet = import_pyarrow()
    rows: list[LedgerRow] = []
    for path in paths:
        try:
            table = parquet.read_table(path, schema=row_schema(LedgerRow))
        except (OSError, pyarrow.ArrowException) as error:
            raise UserError(f"{path}: not a ledger of `bert-jax curate` ({error})") from None
        rows += [LedgerRow(**row) for row in table.to_pylist()]
    return rows
