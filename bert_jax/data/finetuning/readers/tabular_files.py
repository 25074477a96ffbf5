"""Reads tables with named columns: CSV, TSV, JSON lines and Parquet, the text formats also as .gz.

There are two TSV conventions. In GLUE's files, quotes are ordinary characters. Spreadsheets and
pandas put a cell that contains a quote into quotes and double the quotes in it. A file is read in
the second way only if every cell with a quote is written like that.
"""

import csv
import io
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bert_jax.errors import UserError
from bert_jax.io.hub import local_file
from bert_jax.io.json_io import parse_json_line
from bert_jax.text.files import read_text

JSON_EXTENSIONS = (".jsonl", ".ndjson")
FILE_EXTENSIONS = (".csv", ".tsv", *JSON_EXTENSIONS, ".parquet")


class TableRow(NamedTuple):
    """Holds one row: its location ("dev.tsv, line 7") for messages, and its cells by column."""

    location: str
    cells: dict[str, Any]


class DataTable(NamedTuple):
    """Holds the columns of a file in order, its rows, and the number of lines left out."""

    columns: tuple[str, ...]
    rows: list[TableRow]
    skipped_lines: int = 0


def file_extension(path: str) -> str:
    """Returns the extension of a file in lower case, such as ".csv", ignoring a final ".gz"."""
    return Path(path.removesuffix(".gz")).suffix.lower()


def read_table(path: str, encoding: str | None = None) -> DataTable:
    """Reads a file in the format of its extension, also of a data set hf://datasets/ORG/NAME.

    Args:
      encoding: as in `read_text`; Parquet files are always UTF-8.

    Raises:
      UserError: the extension is unknown, the file is damaged, or a row has too few or too many
        columns.
    """
    path = local_file(path)
    extension = file_extension(path)
    if extension == ".csv":
        return _read_csv(path, encoding)
    if extension in (".tsv", ".tab"):
        return read_tsv(path, quotes="auto", encoding=encoding)
    if extension in JSON_EXTENSIONS:
        return _read_json_lines(path, encoding)
    if extension == ".parquet":
        if encoding not in (None, "utf-8"):
            raise UserError(
                f"{path}: the encoding is {encoding}, but Parquet files are always utf-8; leave "
                "out the encoding"
            )
        return _read_parquet(path)
    raise UserError(
        f"{path}: the format is unknown; expected a file with the extension "
        f"{', '.join(FILE_EXTENSIONS)}, or one of these with .gz"
    )


def read_tsv(
    path: str,
    *,
    quotes: Literal["literal", "auto"],
    header: Sequence[str] | None = None,
    skip_short_lines: bool = False,
    encoding: str | None = None,
) -> DataTable:
    """Reads a TSV file.

    Args:
      path: the file.
      quotes: "literal" keeps them; "auto" removes them if the whole file is quoted like CSV.
      header: column names of a file without a header line.
      skip_short_lines: leave out and count lines with too few columns instead of refusing the file.
      encoding: as in `read_text`.
    """
    # Not the module csv, which would take a quote at the start of a cell for the start of a quoted
    # one; GLUE's texts have such quotes.
    lines = [(n, line.split("\t")) for n, line in _numbered_lines(path, encoding)]
    if header is None:
        if not lines:
            raise UserError(f"{path} is empty; expected a first line with column names")
        header = [name.strip() for name in lines.pop(0)[1]]
    if quotes == "auto" and _is_quoted(cell for _, cells in lines for cell in cells):
        header = [_unquote(name) for name in header]
        lines = [(n, [_unquote(cell) for cell in cells]) for n, cells in lines]
    complete_lines = [(n, cells) for n, cells in lines if len(cells) >= len(header)]
    rows = complete_lines if skip_short_lines else lines
    return _make_table(path, header, rows, skipped_lines=len(lines) - len(rows))


def _read_csv(path: str, encoding: str | None) -> DataTable:
    text = read_text(path, encoding=encoding)
    first_line = text.partition("\n")[0]
    # Spreadsheets of some languages separate cells by semicolons. Among equals the comma comes
    # first.
    delimiter = max(",\t;", key=first_line.count)
    csv.field_size_limit(sys.maxsize)  # the default limit is shorter than some documents
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    lines, start_line = [], 1
    try:
        for cells in reader:
            if cells:
                lines.append((start_line, cells))
            start_line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}, line {start_line}: not valid CSV ({error}); a cell with a quote, a "
            "separator or a line break must be quoted, with the quotes in it doubled"
        ) from None
    if not lines:
        raise UserError(f"{path} is empty; expected a first line with column names")
    return _make_table(path, [name.strip() for name in lines[0][1]], lines[1:])


def _make_table(
    path: str, header: Sequence[str], lines: Iterable[tuple[int, list[str]]], skipped_lines: int = 0
) -> DataTable:
    duplicates = sorted(name for name, count in Counter(header).items() if name and count > 1)
    if duplicates:
        raise UserError(
            f"{path}: the column {duplicates[0]!r} occurs twice; expected each name once"
        )
    rows = []
    for line_number, cells in lines:
        if len(cells) != len(header):
            raise UserError(
                f"{path}, line {line_number}: {len(cells)} columns; expected {len(header)} "
                f"({', '.join(header)})"
            )
        rows.append(TableRow(f"{path}, line {line_number}", dict(zip(header, cells, strict=True))))
    return DataTable(tuple(header), rows, skipped_lines)


def _read_json_lines(path: str, encoding: str | None) -> DataTable:
    rows, columns = [], {}
    for line_number, line in _numbered_lines(path, encoding):
        if line.isspace():
            continue
        location = f"{path}, line {line_number}"
        cells = parse_json_line(path, line_number, line)
        if not isinstance(cells, dict):
            raise UserError(f"{location}: expected a JSON object, found a {type(cells).__name__}")
        columns.update(dict.fromkeys(cells))
        rows.append(TableRow(location, cells))
    return DataTable(tuple(columns), rows)


def _read_parquet(path: str) -> DataTable:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or save as .jsonl"
        ) from None
    try:
        table = pyarrow.parquet.read_table(path)
        records = table.to_pylist()  # decodes the text
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: not a readable Parquet file ({error})") from None
    rows = [TableRow(f"{path}, row {n}", cells) for n, cells in enumerate(records, start=1)]
    return DataTable(tuple(table.column_names), rows)


def _numbered_lines(path: str, encoding: str | None) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end) for lines that are not empty."""
    for line_number, line in enumerate(read_text(path, encoding=encoding).split("\n"), start=1):
        # Not `splitlines`: a cell may contain U+2028 and other characters at which it breaks lines.
        line = line.removesuffix("\r")
        if line:
            yield line_number, line


def _is_quoted(cells: Iterable[str]) -> bool:
    has_quotes = False
    for cell in cells:
        if '"' in cell:
            has_quotes = True
            inner = cell[1:-1].replace('""', "")
            if len(cell) < 2 or cell[0] != '"' or cell[-1] != '"' or '"' in inner:
                return False
    return has_quotes


def _unquote(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if cell[:1] == '"' else cell
