"""Renders two tables of the report on a curated corpus: evaluation items, and languages."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bert_jax.data.corpus.contamination.tables import ITEMS_FILE, NOT_SEARCHABLE, read_item_rows
from bert_jax.data.corpus.curation.sample import MeasuredDocument
from bert_jax.report.curation_charts import format_percent
from bert_jax.report.html import section, table


def contamination_section(output: Path) -> str:
    """Returns how many items of each evaluation set were found; "" if none was searched."""
    if not (output / ITEMS_FILE).is_file():
        return ""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for row in read_item_rows(output):
        group = "input" if row.input_documents else "context" if row.context_documents else ""
        count = counts.setdefault((row.set_name, row.split), Counter())
        count["items"] += 1
        count[group] += 1
        count["removed"] += row.removed_documents > 0
        count["not searchable"] += row.rule in NOT_SEARCHABLE
    rows = [
        [
            f"{name}, {split}",
            f"{found['items']:,}",
            *(f"{found['input']:,}", format_percent(found["input"], found["items"])),
            *(f"{found[name]:,}" for name in ("context", "removed", "not searchable")),
        ]
        for (name, split), found in sorted(counts.items())
    ]
    header = (
        *("evaluation set", "items", "input in the corpus", "of items"),
        *("only a context", "input removed", "not searchable"),
    )
    note = (
        "“Input removed” counts items of which a document or its lines were removed. Items that "
        "are too short or common phrases are not searchable. Paraphrases are not found."
    )
    return section("Evaluation items in the corpus", table(header, rows, caption=note))


def languages_section(measured: Sequence[MeasuredDocument]) -> str:
    """Returns documents and words by language, before and after the rules; "" without the model."""
    counts: dict[str, Counter[str]] = {}
    for document in measured:
        if document.language is None:
            return ""
        count = counts.setdefault(document.language or "not clear", Counter())
        words = int(document.signals["words"])
        count["documents"] += 1
        count["words"] += words
        if not document.broken:
            count["retained"] += 1
            count["retained words"] += words
    total = sum(counts.values(), Counter[str]())
    rows = [
        [
            name,
            f"{count['documents']:,}",
            *(f"{count['words']:,}", format_percent(count["words"], total["words"])),
            f"{count['retained']:,}",
            f"{count['retained words']:,}",
            format_percent(count["retained words"], total["retained words"]),
        ]
        for name, count in sorted(counts.items(), key=lambda item: (-item[1]["words"], item[0]))
    ]
    header = (
        *("language", "documents", "words", "of words"),
        *("documents that the rules keep", "words", "of words"),
    )
    note = (
        "The most probable language of the middle of each measured document, by fastText's model "
        "lid.176, if its probability is at least 0.5."
    )
    return section("Languages", table(header, rows, caption=note))
