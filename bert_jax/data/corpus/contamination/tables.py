"""Defines the files that report a contamination, next to the shards of a curated corpus.

contamination.json             counts by evaluation set, and the most frequent common phrases
contamination.parquet          one row for each place where a text of an item was found
contamination-items.parquet    one row for each item: how it was searched, what was found of it
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from bert_jax.atomic_io import atomic_path
from bert_jax.data.corpus.curation.ledger import import_pyarrow
from bert_jax.errors import UserError

SUMMARY_FILE = "contamination.json"
MATCHES_FILE = "contamination.parquet"
ITEMS_FILE = "contamination-items.parquet"

SearchRule = Literal[
    "13-grams", "whole text", "with another text", "too short", "common phrase", "no words"
]
"""How the longest input of an item was searched. A text of fewer than 8 words counts only near
another text or an answer of its item, and is "too short" if the item has none. Common phrases never
count by themselves."""
SEARCH_RULES: tuple[SearchRule, ...] = get_args(SearchRule)
NOT_SEARCHABLE: tuple[SearchRule, ...] = ("too short", "common phrase", "no words")
"""The rules of items that cannot be found. An item that was copied into many documents is a common
phrase, so nothing found does not mean that it is clean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchRow:
    """Describes a place where a text of an item was found.

    Attributes:
      document: the id of the document in the ledger.
      item, field: the id of the item, and which of its texts was found.
      item_row: the row of the item in contamination-items.parquet, from 0.
      fraction: the part of the n-grams of the text that was found.
      start, end: characters of the document before this step, `end` excluded.
      before, match, after: the text at the place, the match shortened to 500 characters.
      action: "reported" if the corpus still has the place, "removed" if its lines were removed,
        "dropped" if the document was.
    """

    document: str
    set_name: str
    split: str
    item: str
    item_row: int
    field: str
    role: str
    fraction: float
    start: int
    end: int
    before: str
    match: str
    after: str
    action: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemRow:
    """Describes what was found of an item.

    Attributes:
      digest: identifies the item by the words of its texts, so that it is recognized in other
        files of the same data.
      rule: how the item was searched, one of `SEARCH_RULES`.
      input_documents: the number of documents of the finished corpus that contain an input of the
        item.
      context_documents: the same for a context of the item.
      removed_documents: the number of documents that were dropped because of an input of the item,
        or that lost the lines with it.
    """

    set_name: str
    split: str
    id: str
    digest: int
    rule: str
    input_documents: int
    context_documents: int
    removed_documents: int = 0


def write_rows(path: Path, row_type: type[MatchRow] | type[ItemRow], rows: Sequence[Any]) -> None:
    """Writes rows of one type as a Parquet file."""
    pyarrow, parquet = import_pyarrow()
    columns = {
        field.name: [getattr(row, field.name) for row in rows]
        for field in dataclasses.fields(row_type)
    }
    with atomic_path(path) as tmp_path:
        table = pyarrow.table(columns, schema=_schema(pyarrow, row_type))
        parquet.write_table(table, tmp_path, compression="zstd")


def read_matches(folder: Path) -> list[MatchRow]:
    """Reads where texts of items were found in a corpus.

    Raises:
      UserError: the folder has no such file, or it is damaged.
    """
    return [MatchRow(**row) for row in _read_rows(folder / MATCHES_FILE, MatchRow)]


def read_item_rows(folder: Path) -> list[ItemRow]:
    """Reads what was found of each item.

    Raises:
      UserError: the folder has no such file, or it is damaged.
    """
    rows = _read_rows(folder / ITEMS_FILE, ItemRow)
    # The first files had no column "removed_documents".
    for row in rows:
        row["removed_documents"] = row["removed_documents"] or 0
    return [ItemRow(**row) for row in rows]


def _read_rows(path: Path, row_type: type[Any]) -> list[dict[str, Any]]:
    pyarrow, parquet = import_pyarrow()
    if not path.is_file():
        raise UserError(
            f"{path}: no such file; `bert-jax curate` writes it into its output folder if the "
            "recipe has a step Decontamination, as the recipe 'contamination' does"
        )
    try:
        return parquet.read_table(path, schema=_schema(pyarrow, row_type)).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: damaged ({error}); run `bert-jax curate` again") from None


def _schema(pyarrow: Any, row_type: type[Any]) -> Any:
    types: dict[Any, Any] = {
        str: pyarrow.string(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
    }
    return pyarrow.schema(
        [(field.name, types[field.type]) for field in dataclasses.fields(row_type)]
    )
