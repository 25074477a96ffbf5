"""Reads which evaluation items were found in a corpus, to compute scores on the others too.

contamination.json             counts by evaluation set, and the most frequent common phrases
contamination.parquet          one row for each place where a text of an item was found
contamination-items.parquet    one row for each item: how it was searched, what was found of it

The file with the items is in the folder of a curated corpus. It is copied to a corpus that is
prepared from all its documents, to the run that trains on it, to runs that start from that one, and
to the folders that they are exported to.
"""

import dataclasses
import logging
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from bert_jax.data.corpus.contamination.items import item_of_example
from bert_jax.data.finetuning.example import Example, Task
from bert_jax.errors import MissingExtraError, UserError
from bert_jax.io.atomic_io import atomic_path, make_folder
from bert_jax.io.json_io import read_json_object

SUMMARY_FILE = "contamination.json"
MATCHES_FILE = "contamination.parquet"
DOCUMENTS = "documents-{}.jsonl.gz"
"""The name of a shard of a curated corpus, with its number."""
ITEMS_FILE = "contamination-items.parquet"
MANIFEST_FILE = "manifest.json"

SearchRule = Literal[
    "13-grams", "whole text", "with another text", "too short", "common phrase", "no words"
]
"""How the longest input of an item was searched. A text of fewer than 8 words counts only near
another text or an answer of its item, and is "too short" if the item has none. Common phrases never
count by themselves."""
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
      rule: how the item was searched, a `SearchRule`.
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
    _, parquet = import_pyarrow()
    with atomic_path(path) as tmp_path:
        parquet.write_table(make_table(row_type, rows), tmp_path, compression="zstd")


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
        return parquet.read_table(path, schema=row_schema(row_type)).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: damaged ({error}); run `bert-jax curate` again") from None


def make_table(row_type: type[Any], rows: Sequence[Any]) -> Any:
    """Returns a pyarrow table with a column for each field of a dataclass."""
    pyarrow, _ = import_pyarrow()
    schema = row_schema(row_type)
    columns = {name: [getattr(row, name) for row in rows] for name in schema.names}
    return pyarrow.table(columns, schema=schema)


def row_schema(row_type: type[Any]) -> Any:
    """Returns the types of the columns for the fields of a dataclass."""
    pyarrow, _ = import_pyarrow()
    types: dict[Any, Any] = {
        str: pyarrow.string(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        float | None: pyarrow.float64(),
    }
    return pyarrow.schema(
        [(field.name, types[field.type]) for field in dataclasses.fields(row_type)]
    )


logger = logging.getLogger(__name__)

ItemGroup = Literal["clean", "found", "context_found", "not_searchable", "not_searched"]
"""Groups of examples: nothing was found; an input was found; only a context was found; the inputs
are too short or common phrases, which cannot be found; the example is in none of the evaluation
sets that were searched. Inputs that were removed from the corpus do not count as found."""
ITEM_GROUPS: tuple[ItemGroup, ...] = get_args(ItemGroup)

_SEVERITIES: tuple[ItemGroup, ...] = ("clean", "not_searchable", "context_found", "found")


class FoundItems:
    """Assigns examples to groups by what was found of them in a corpus."""

    def __init__(self, rows: Sequence[ItemRow]):
        self._groups: dict[int, ItemGroup] = {}
        for row in rows:
            group: ItemGroup = "clean"
            if row.input_documents:
                group = "found"
            elif row.context_documents:
                group = "context_found"
            elif row.rule in NOT_SEARCHABLE:
                group = "not_searchable"
            # The texts of equal items in two sets may have other roles: the worst group counts.
            earlier = self._groups.get(row.digest, group)
            if _SEVERITIES.index(group) >= _SEVERITIES.index(earlier):
                self._groups[row.digest] = group

    @classmethod
    def read(cls, folder: str | Path) -> "FoundItems":
        """Reads the items of a folder that `bert-jax curate` wrote, or to which they were copied.

        Raises:
          UserError: the folder has no such file, or it is damaged.
        """
        return cls(read_item_rows(Path(folder)))

    def group_of(self, example: Example, task_name: str) -> ItemGroup:
        """Returns the group of an example, which is recognized by the words of its texts."""
        return self._groups.get(item_of_example(example, task_name).digest, "not_searched")

    def groups(self, task: Task, split: str) -> list[ItemGroup]:
        """Returns the group of each example of a split."""
        return [self.group_of(example, task.name) for example in task.splits[split]]


# Items are known by a hash of their words, not by file and row: `evaluate`, `finetune` and `glue`
# recognize them in any format of the same data.
def known_items(folder: str | None, model: Path) -> FoundItems | None:
    """Returns what is known about the pretraining corpus of a model.

    Args:
      folder: the folder that a user gives; None to look in the folder of the model.
      model: the folder of the model.

    Raises:
      UserError: the folder that the user gives has no file of items, or the file is damaged.
    """
    if folder is not None:
        return FoundItems.read(folder)
    return FoundItems.read(model) if (model / ITEMS_FILE).is_file() else None


def copy_items_of_files(files: Sequence[str], target: Path) -> bool:
    """Copies the file of the items to a corpus that is prepared from files, as `copy_items`.

    It is not copied if only some of the shards of a curated corpus are read, because the counts are
    the items of all shards; this logs a warning.
    """
    folders = _folders_of(files)
    for folder in folders:
        if not (folder / ITEMS_FILE).is_file():
            return False
        if missing := sorted(_shards_of(folder) - {*map(Path, files)}):
            logger.warning(
                "warning: %s is read without %s and so has other counts of evaluation items than "
                "%s; the file is not copied",
                folder,
                missing[0].name,
                ITEMS_FILE,
            )
            return False
    return copy_items(folders, target)


def _folders_of(files: Sequence[str]) -> list[Path]:
    return sorted({Path(file).parent for file in files})


def _shards_of(folder: Path) -> set[Path]:
    return {*folder.glob(DOCUMENTS.format("*"))}


def curation_counts(files: Sequence[str]) -> dict[str, int]:
    """Returns what `bert-jax curate` did to the documents of the curated corpora that files are of.

    Returns:
      "documents read", "documents removed: REASON" and "lines removed: REASON" -> their number; {}
      if the files are not all shards of curated corpora.

    Raises:
      UserError: a manifest of a curated corpus is damaged.
    """
    total = Counter[str]()
    for folder in _folders_of(files):
        shards = _shards_of(folder)
        if not (folder / MANIFEST_FILE).is_file() or not shards or shards - {*map(Path, files)}:
            return {}
        manifest = read_json_object(folder / MANIFEST_FILE)
        try:
            total["documents read"] += manifest["counts"]["documents"]
            for reasons in manifest["counts"]["dropped"].values():
                for reason, count in reasons.items():
                    total[f"documents removed: {reason}"] += count
            for reason, count in manifest["removed_lines"].items():
                total[f"lines removed: {reason}"] += count
        except (KeyError, TypeError, AttributeError):
            raise UserError(
                f"{folder / MANIFEST_FILE}: not the manifest of a curated corpus; run `bert-jax "
                "curate` again"
            ) from None
    return dict(total)


# Copied, not linked: the input may be deleted, and what is fine-tuned from a model still has to
# know the items.
def copy_items(sources: Sequence[str | Path], target: Path) -> bool:
    """Copies the file of the items to a folder, if all sources have it.

    Documents are added up over several sources. Items that one of them did not search are left out,
    because nothing is known about them.

    Returns:
      Whether the file was written.
    """
    paths = [Path(source) / ITEMS_FILE for source in sources]
    if not paths or not all(path.is_file() for path in paths):
        return False
    make_folder(target)
    if len(paths) == 1:
        with atomic_path(target / ITEMS_FILE) as tmp_path:
            shutil.copyfile(paths[0], tmp_path)
        return True
    rows_of_sources = [
        {(row.set_name, row.split, row.id, row.digest): row for row in read_item_rows(path.parent)}
        for path in paths
    ]
    merged = [
        replace(
            row,
            input_documents=sum(rows[key].input_documents for rows in rows_of_sources),
            context_documents=sum(rows[key].context_documents for rows in rows_of_sources),
            removed_documents=sum(rows[key].removed_documents for rows in rows_of_sources),
            # What could not be searched in one of the corpora may be in it.
            rule=next(
                (rows[key].rule for rows in rows_of_sources if rows[key].rule in NOT_SEARCHABLE),
                row.rule,
            ),
        )
        for key, row in rows_of_sources[0].items()
        if all(key in rows for rows in rows_of_sources)
    ]
    write_rows(target / ITEMS_FILE, ItemRow, merged)
    return True


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
