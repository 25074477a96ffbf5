"""Looks up which examples of a task were found in a corpus, to compute scores on the others too.

The file with the items is in the folder of a curated corpus. It is copied to a corpus that is
prepared from all its documents, to the run that trains on it, to runs that start from that one, and
to the folders that they are exported to.
"""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from bert_jax.atomic_io import atomic_path, make_folder
from bert_jax.data.corpus.contamination.items import item_of_example
from bert_jax.data.corpus.contamination.tables import (
    ITEMS_FILE,
    NOT_SEARCHABLE,
    ItemRow,
    read_item_rows,
    write_rows,
)
from bert_jax.data.corpus.curation.shards import DOCUMENTS
from bert_jax.data.finetuning.example import Example, Task

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


def known_items(folder: str | None, model: str) -> FoundItems | None:
    """Returns what is known about the pretraining corpus of a model.

    Args:
      folder: the folder that a user gives; None to look in the folder of the model.

    Raises:
      UserError: the folder that the user gives has no file of items, or the file is damaged.
    """
    if folder is not None:
        return FoundItems.read(folder)
    return FoundItems.read(model) if (Path(model) / ITEMS_FILE).is_file() else None


def copy_items_of_files(files: Sequence[str], target: Path) -> bool:
    """Copies the file of the items to a corpus that is prepared from files, as `copy_items`.

    It is not copied if only some of the shards of a curated corpus are read, because the counts are
    those of all shards; this logs a warning.
    """
    paths = [Path(file) for file in files]
    folders = sorted({path.parent for path in paths})
    for folder in folders:
        if not (folder / ITEMS_FILE).is_file():
            return False
        if missing := sorted({*folder.glob(DOCUMENTS.format("*"))} - {*paths}):
            logger.warning(
                "warning: %s is read without %s and so has other counts of evaluation items than "
                "%s; the file is not copied",
                folder,
                missing[0].name,
                ITEMS_FILE,
            )
            return False
    return copy_items(folders, target)


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
