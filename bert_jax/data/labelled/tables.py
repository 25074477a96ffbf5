"""Rows of a file by the names of their columns: CSV, TSV, JSON lines, Parquet; .gz beside plain.

Two habits share the name TSV. GLUE's files are split at tabs and quotes are text ("literal"); a
spreadsheet or pandas quotes a cell that holds a quote and doubles the quotes in it. A file is read
the second way only if every cell with a quote in it is written so.
"""

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bert_jax.errors import UserError
from bert_jax.text.files import read_text

JSON_ENDINGS = (".jsonl", ".ndjson")
ENDINGS = (".csv", ".tsv", *JSON_ENDINGS, ".parquet")


class Row(NamedTuple):
    """One row: where it stands ("dev.tsv, line 7"), and its cells by column."""

    place: str
    cells: dict[str, Any]


class Table(NamedTuple):
    """A file's columns in their order, its rows, and how many lines were left out as cut off."""

    columns: tuple[str, ...]
    rows: list[Row]
    cut_off: int = 0


def read_table(path: str) -> Table:
    """Reads a file by the ending of its name.

    Raises:
      UserError: an unknown ending; a damaged file; a row with too few or too many columns, by line.
    """
    ending = Path(path.removesuffix(".gz")).suffix.lower()
    if ending == ".csv":
        return _read_csv(path)
    if ending in (".tsv", ".tab"):
        return read_tsv(path, quotes="seen")
    if ending in JSON_ENDINGS:
        return _read_json_lines(path)
    if ending == ".parquet":
        return _read_parquet(path)
    raise UserError(
        f"{path}: cannot tell its format from its name; expected one that ends in "
        f"{', '.join(ENDINGS)}, or those with .gz"
    )


def read_tsv(
    path: str,
    *,
    quotes: Literal["literal", "seen"],
    header: Sequence[str] | None = None,
    skip_cut_off: bool = False,
) -> Table:
    """Reads lines split at tabs.

    Args:
      path: the file.
      quotes: "literal" keeps them; "seen" removes them if the whole file is quoted as CSV is.
      header: the columns of a file whose first line is a row already.
      skip_cut_off: leave out and count lines with too few columns, instead of refusing the file.
    """
    lines = [(n, line.split("\t")) for n, line in _numbered(path)]
    if header is None:
        if not lines:
            raise UserError(f"{path}: the file is empty; expected a first line of column names")
        header = [name.strip() for name in lines.pop(0)[1]]
    if quotes == "seen" and _is_quoted(cell for _, cells in lines for cell in cells):
        header = [_unquoted(name) for name in header]
        lines = [(n, [_unquoted(cell) for cell in cells]) for n, cells in lines]
    whole = [(n, cells) for n, cells in lines if len(cells) >= len(header)]
    rows = whole if skip_cut_off else lines
    return _table(path, header, rows, cut_off=len(lines) - len(rows))


def _read_csv(path: str) -> Table:
    text = read_text(path)
    first = text.partition("\n")[0]
    delimiter = max(",\t;", key=first.count)
    csv.field_size_limit(sys.maxsize)  # Python's own limit is a long document's length
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    lines, start = [], 1
    try:
        for cells in reader:
            if cells:
                lines.append((start, cells))
            start = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}, line {start}: not valid CSV ({error}); a cell with a quote, the separator or "
            "a line break in it stands in quotes, and quotes within it are doubled"
        ) from None
    if not lines:
        raise UserError(f"{path}: the file is empty; expected a first line of column names")
    return _table(path, [name.strip() for name in lines[0][1]], lines[1:])


def _table(
    path: str, header: Sequence[str], lines: Iterable[tuple[int, list[str]]], cut_off: int = 0
) -> Table:
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise UserError(f"{path}: the column {twice[0]!r} occurs twice; expected each name once")
    rows = []
    for number, cells in lines:
        if len(cells) != len(header):
            raise UserError(
                f"{path}, line {number}: {len(cells)} columns; expected {len(header)} "
                f"({', '.join(header)})"
            )
        rows.append(Row(f"{path}, line {number}", dict(zip(header, cells, strict=True))))
    return Table(tuple(header), rows, cut_off)


def _read_json_lines(path: str) -> Table:
    rows, columns = [], {}
    for number, line in _numbered(path):
        if line.isspace():
            continue
        place = f"{path}, line {number}"
        try:
            cells = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{place}: not valid JSON ({error.msg} at column {error.colno}); expected one "
                "object on each line"
            ) from None
        if not isinstance(cells, dict):
            raise UserError(f"{place}: expected a JSON object, found a {type(cells).__name__}")
        columns.update(dict.fromkeys(cells))
        rows.append(Row(place, cells))
    return Table(tuple(columns), rows)


def _read_parquet(path: str) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or save as .jsonl"
        ) from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: not a readable Parquet file ({error})") from None
    rows = [Row(f"{path}, row {n}", cells) for n, cells in enumerate(table.to_pylist(), start=1)]
    return Table(tuple(table.column_names), rows)


def _numbered(path: str) -> Iterator[tuple[int, str]]:
    """(number from 1, line without its end) of the lines that are not empty."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        line = line.removesuffix("\r")
        if line:
            yield number, line


def _is_quoted(cells: Iterable[str]) -> bool:
    found = False
    for cell in cells:
        if '"' in cell:
            found = True
            inner = cell[1:-1].replace('""', "")
            if len(cell) < 2 or cell[0] != '"' or cell[-1] != '"' or '"' in inner:
                return False
    return found


def _unquoted(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if cell[:1] == '"' else cell
