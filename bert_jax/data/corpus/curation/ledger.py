"""Defines the ledger: what happened to each document of the input, as Parquet files.

Each work unit writes one file, with one row for each document, in the order of the input.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bert_jax.atomic_io import atomic_path
from bert_jax.errors import MissingExtraError, UserError

RETAINED = ""
"""The reason of a document that is kept."""


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
      twin: the id of the document that was kept in place of this one, which repeats it; "" for
        other reasons. If a later step dropped the twin, the row of the twin has that reason.
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


def write_ledger(path: Path, rows: Sequence[LedgerRow]) -> None:
    """Writes the rows of one work unit."""
    pyarrow, parquet = import_pyarrow()
    table = pyarrow.table(
        {name: [getattr(row, name) for row in rows] for name in _COLUMNS}, schema=_schema(pyarrow)
    )
    with atomic_path(path) as tmp_path:
        parquet.write_table(table, tmp_path, compression="zstd")


def read_ledger(paths: Iterable[Path]) -> list[LedgerRow]:
    """Reads the rows of ledger files, in order.

    Raises:
      UserError: a file is missing or is no ledger.
    """
    pyarrow, parquet = import_pyarrow()
    rows: list[LedgerRow] = []
    for path in paths:
        try:
            table = parquet.read_table(path, schema=_schema(pyarrow))
        except (OSError, pyarrow.ArrowException) as error:
            raise UserError(f"{path}: not a ledger of `bert-jax curate` ({error})") from None
        rows += [LedgerRow(**row) for row in table.to_pylist()]
    return rows


_COLUMNS = tuple(each.name for each in fields(LedgerRow))


def _schema(pyarrow: Any) -> Any:
    text, number = pyarrow.string(), pyarrow.int64()
    types = dict.fromkeys(_COLUMNS, text) | {
        "characters": number,
        "retained_characters": number,
        "value": pyarrow.float64(),
    }
    return pyarrow.schema(list(types.items()))


def import_pyarrow() -> tuple[Any, Any]:
    """Returns pyarrow and pyarrow.parquet; MissingExtraError if they are not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError(
            "`bert-jax curate` needs pyarrow for its ledger", "curate"
        ) from None
    return pyarrow, pyarrow.parquet
