"""Reads documents from Parquet files, one from each row."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bert_jax.apps.curate.formats.patterns import FilePatterns
from bert_jax.data.corpus.source_files import SourceFile
from bert_jax.data.corpus.sources import RawDocument
from bert_jax.errors import MissingExtraError, UserError, did_you_mean

_BATCH_ROWS = 1024

NOT_UTF8 = "not UTF-8"


@dataclass(frozen=True)
class ParquetFiles(FilePatterns):
    """Names Parquet files: `ParquetFiles("fineweb/*.parquet")`, with the text in a column.

    Other columns are left out.
    """

    column: str = "text"

    def read_file(self, file: SourceFile) -> Iterator[RawDocument]:
        """Yields a document for each row; one that is not UTF-8 has that reason.

        Raises:
          UserError: the file cannot be read, or has no such column of text.
        """
        number = 0
        for batch in self._batches(file.path):
            for text in _texts(batch.column(0)):
                number += 1
                reason = NOT_UTF8 if text is None else ""
                yield RawDocument(key=str(number), text=text or "", reason=reason)

    def _batches(self, path: str) -> Iterator[Any]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise MissingExtraError(f"{path}: Parquet files need pyarrow", "curate") from None
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                self._check_column(path, file.schema_arrow, pyarrow.types)
                # A row group at a time: files have groups of up to a gigabyte.
                yield from file.iter_batches(_BATCH_ROWS, columns=[self.column])
        except (OSError, pyarrow.ArrowException) as error:
            raise UserError(f"{path}: not a Parquet file, or damaged ({error})") from None

    def _check_column(self, path: str, schema: Any, types: Any) -> None:
        if self.column not in schema.names:
            hint = did_you_mean(self.column, schema.names)
            raise UserError(
                f"{path}: no column {self.column!r}; {hint}found {', '.join(schema.names)}"
            )
        kind = schema.field(self.column).type
        if not (types.is_string(kind) or types.is_large_string(kind)):
            raise UserError(f"{path}: column {self.column!r} has type {kind}, expected string")


def _texts(column: Any) -> list[str | None]:
    """Returns the texts of a column, "" for null, and None for bytes that are not UTF-8."""
    try:
        return [text or "" for text in column.to_pylist()]
    except UnicodeDecodeError:  # few writers check the bytes of a text column
        return [_text(value) for value in column]


def _text(value: Any) -> str | None:
    try:
        return value.as_py() or ""
    except UnicodeDecodeError:
        return None
