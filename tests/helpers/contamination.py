"""Writes the file of items that `bert-jax curate` writes, without searching a corpus."""

from collections.abc import Collection
from pathlib import Path

from bert_jax.data.corpus.contamination.found_items import ITEMS_FILE, ItemRow, write_rows
from bert_jax.data.corpus.contamination.items import item_of_example
from bert_jax.data.finetuning.example import Task


def write_item_rows(folder: Path, task: Task, split: str, found_ids: Collection[str]) -> None:
    """Writes a row for each example of a split; the inputs of some were found in one document."""
    folder.mkdir(parents=True, exist_ok=True)
    items = [item_of_example(example, task.name, split) for example in task.splits[split]]
    rows = [
        ItemRow(
            set_name=item.set_name,
            split=split,
            id=item.id,
            digest=item.digest,
            rule="13-grams",
            input_documents=int(item.id in found_ids),
            context_documents=0,
        )
        for item in items
    ]
    write_rows(folder / ITEMS_FILE, ItemRow, rows)
