"""Runs the two passes of decontamination over one work unit, in worker processes.

`write_counts` finds n-grams of evaluation items, then `write_found` decides about the documents.
"""

import bisect
import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.atomic_io import atomic_path, atomic_write
from bert_jax.data.corpus.contamination.config import Action, RemoveParagraphs, ReportOnly
from bert_jax.data.corpus.contamination.index import ContaminationIndex
from bert_jax.data.corpus.contamination.items import Item, ItemText
from bert_jax.data.corpus.contamination.matching import ItemMatch, find_items
from bert_jax.data.corpus.contamination.tables import MatchRow
from bert_jax.data.corpus.contamination.words import Words
from bert_jax.data.corpus.curation.corpus import Corpus, Decision, Document

REASON = "contaminated"
"""The reason in the ledger begins with this word; the name of the evaluation set follows."""
MAX_PARAGRAPH_WORDS = 500
"""Of a longer paragraph, only the lines with a match are removed."""
_CONTEXT_CHARACTERS, _MATCH_CHARACTERS = 80, 500


def items_path(corpus: Corpus) -> Path:
    """Returns the path of the evaluation items, which all workers read."""
    return corpus.path("items", 0)


def common_path(corpus: Corpus) -> Path:
    """Returns the path of the n-grams that are too common to count as matches."""
    return corpus.path("common", 0)


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Writes the items as JSON lines."""
    lines = (
        json.dumps(
            [each.set_name, each.split, each.id, [[t.field, t.role, t.text] for t in each.texts]]
        )
        for each in items
    )
    atomic_write(path, "".join(line + "\n" for line in lines))
    load_index.cache_clear()  # an earlier run in this process may have had the same path


@functools.lru_cache(maxsize=1)
def load_index(path: Path) -> ContaminationIndex:
    """Makes the index in a process; it is smaller to send the items than the n-grams."""
    with path.open(encoding="utf-8") as file:
        return ContaminationIndex([_item_from_json(*json.loads(line)) for line in file])


def _item_from_json(set_name: str, split: str, item_id: str, texts: list[Any]) -> Item:
    fields = tuple(ItemText(field=field, role=role, text=text) for field, role, text in texts)
    return Item(set_name=set_name, split=split, id=item_id, texts=fields)


def write_counts(path: Path, corpus: Corpus, unit: int) -> None:
    """Writes how many documents of a unit have each n-gram, and which have at least one."""
    index = load_index(items_path(corpus))
    counts = np.zeros(index.num_ngrams, np.int64)
    candidates: list[int] = []
    num_documents = 0
    for document in corpus.documents(unit):
        num_documents += 1
        ngrams = [numbers for _, numbers in index.find_ngrams(Words.of(document.text)).values()]
        if ngrams:
            candidates.append(document.index)
            counts[np.unique(np.concatenate(ngrams))] += 1
    (ngrams_of_unit,) = np.nonzero(counts)
    with atomic_path(path) as tmp_path, tmp_path.open("wb") as file:
        np.savez(
            file,
            ngrams=ngrams_of_unit,
            counts=counts[ngrams_of_unit],
            candidates=np.array(candidates, np.int64),
            num_documents=np.array(num_documents),
        )


def read_counts(path: Path) -> dict[str, np.ndarray]:
    """Reads a file of `write_counts`."""
    with np.load(path) as arrays:
        return dict(arrays)


def write_found(path: Path, corpus: Corpus, unit: int, action: Action) -> None:
    """Writes the matches in the documents of a unit, and what is done about them."""
    index = load_index(items_path(corpus))
    common = np.load(common_path(corpus))
    candidates = set(read_counts(corpus.path("counts", unit))["candidates"].tolist())
    lines: list[str] = []
    for document in corpus.documents(unit):
        if document.index not in candidates:
            continue
        words = Words.of(document.text)
        matches = find_items(index, words, common)
        if not matches:
            continue
        removed = [each for each in matches if _is_removable(index, each)]
        decision = _decide(corpus, document, words, removed, index, action)
        rows = [
            _match_row(index, document, words, each, _action_on(each, words, decision))
            for each in matches
        ]
        content = decision and asdict(decision)
        lines.append(json.dumps([document.index, content, [asdict(row) for row in rows]]))
    atomic_write(path, "".join(line + "\n" for line in lines))


def read_found(path: Path) -> Iterator[tuple[int, Decision | None, list[MatchRow]]]:
    """Yields (index of the document, decision, matches) from a file of `write_found`."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            index, decision, rows = json.loads(line)
            if decision is not None:
                decision["removed_lines"] = tuple(decision["removed_lines"])
            yield (
                index,
                None if decision is None else Decision(**decision),
                [MatchRow(**row) for row in rows],
            )


def _is_removable(index: ContaminationIndex, match: ItemMatch) -> bool:
    """Returns whether a match is the input of a test item; contexts and training items are not."""
    item = index.items[match.item]
    return item.texts[match.field].role == "input" and item.split != "train"


def _decide(
    corpus: Corpus,
    document: Document,
    words: Words,
    removed: Sequence[ItemMatch],
    index: ContaminationIndex,
    action: Action,
) -> Decision | None:
    """Returns what is done with a document that contains the matches `removed`; None: nothing."""
    if not removed or isinstance(action, ReportOnly):
        return None
    if isinstance(action, RemoveParagraphs) or len(words.keys) > action.max_words:
        spans = [words.span(each.start, each.end) for each in removed]
        decision = corpus.edit(document, lines_to_remove(document.text, spans), REASON)
        if not decision.reason:
            return decision
    # Also if the rest is empty or breaks a rule: the ledger then names the test item as the cause.
    item = index.items[removed[0].item]
    return Decision(
        reason=f"{REASON}: {item.set_name}",
        value=removed[0].fraction,
        twin=f"{item.set_name}/{item.split}/{item.id}",
    )


def _action_on(match: ItemMatch, words: Words, decision: Decision | None) -> str:
    """Returns `MatchRow.action`: "reported" if the matched text stays in the corpus."""
    if decision is None:
        return "reported"
    if decision.reason:
        return "dropped"
    start, end = words.span(match.start, match.end)
    first = words.text.count("\n", 0, start)
    last = first + words.text.count("\n", start, end)
    return "removed" if {*range(first, last + 1)} <= {*decision.removed_lines} else "reported"


def lines_to_remove(text: str, spans: Iterable[tuple[int, int]]) -> set[int]:
    """Returns the numbers of the lines of the paragraphs that contain spans of characters.

    A paragraph is what blank lines separate. Of one with more than `MAX_PARAGRAPH_WORDS` words,
    only the lines with a span are removed.
    """
    lines = text.split("\n")
    starts = np.cumsum([0, *(len(line) + 1 for line in lines[:-1])]).tolist()
    removed: set[int] = set()
    for start, end in spans:
        first = bisect.bisect_right(starts, start) - 1
        last = bisect.bisect_right(starts, end - 1) - 1
        paragraph_first, paragraph_last = first, last
        while paragraph_first > 0 and lines[paragraph_first - 1].strip():
            paragraph_first -= 1
        while paragraph_last + 1 < len(lines) and lines[paragraph_last + 1].strip():
            paragraph_last += 1
        paragraph = range(paragraph_first, paragraph_last + 1)
        is_long = sum(len(lines[i].split()) for i in paragraph) > MAX_PARAGRAPH_WORDS
        removed.update(range(first, last + 1) if is_long else paragraph)
    return removed


def _match_row(
    index: ContaminationIndex, document: Document, words: Words, match: ItemMatch, action: str
) -> MatchRow:
    item = index.items[match.item]
    field = item.texts[match.field]
    start, end = words.span(match.start, match.end)
    return MatchRow(
        document=document.id,
        set_name=item.set_name,
        split=item.split,
        item=item.id,
        item_row=match.item,
        field=field.field,
        role=field.role,
        fraction=match.fraction,
        start=start,
        end=end,
        before=words.text[max(start - _CONTEXT_CHARACTERS, 0) : start],
        match=words.text[start : min(end, start + _MATCH_CHARACTERS)],
        after=words.text[end : end + _CONTEXT_CHARACTERS],
        action=action,
    )
