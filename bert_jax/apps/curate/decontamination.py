"""Searches evaluation items in all documents of a corpus, reports them, and removes them.

`write_counts` finds n-grams of evaluation items, then `write_found` decides about the documents.

The first pass counts in how many documents and sources each n-gram of the items occurs; the second
finds the items in the documents that have any of these n-grams, without the common ones. Counts are
integers that are added up, so the result depends on neither the order nor the number of workers.
"""

import bisect
import functools
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bert_jax.apps.curate.corpus import Corpus, Decision, Document
from bert_jax.apps.curate.item_matching import (
    MIN_WORDS,
    NGRAM_WORDS,
    ContaminationIndex,
    ItemMatch,
    common_ngrams,
    find_items,
    is_matchable,
)
from bert_jax.apps.curate.workers import Workers
from bert_jax.config.labeled_data import Glue
from bert_jax.data.corpus.contamination.found_items import (
    ITEMS_FILE,
    MATCHES_FILE,
    NOT_SEARCHABLE,
    SUMMARY_FILE,
    ItemRow,
    MatchRow,
    SearchRule,
    write_rows,
)
from bert_jax.data.corpus.contamination.items import (
    Action,
    DropDocuments,
    EvaluationSet,
    FileItems,
    Item,
    ItemText,
    RemoveParagraphs,
    ReportOnly,
    Words,
    read_items,
    word_keys,
)
from bert_jax.data.finetuning.readers.glue import GLUE_TASKS
from bert_jax.errors import ConfigError, UserError, check_range
from bert_jax.io.atomic_io import atomic_path, atomic_write, make_folder, write_json

_MAX_PHRASES = 20


def item_rows(
    index: ContaminationIndex, common: np.ndarray, matches: Sequence[MatchRow]
) -> list[ItemRow]:
    """Returns the row of each item, in the order of the index."""
    documents: dict[tuple[int, str, bool], set[str]] = defaultdict(set)
    for row in matches:
        documents[row.item_row, row.role, row.action == "reported"].add(row.document)
    return [
        ItemRow(
            set_name=item.set_name,
            split=item.split,
            id=item.id,
            digest=item.digest,
            rule=search_rule(index, i, item, common),
            input_documents=len(documents.get((i, "input", True), ())),
            context_documents=len(documents.get((i, "context", True), ())),
            removed_documents=len(documents.get((i, "input", False), ())),
        )
        for i, item in enumerate(index.items)
    ]


def search_rule(
    index: ContaminationIndex, number: int, item: Item, common: np.ndarray
) -> SearchRule:
    """Returns how the longest input of an item is searched; a context if it has no input."""
    roles = {field.role for field in item.texts}
    role = "input" if "input" in roles else "context"
    texts = [
        text
        for f, field in enumerate(item.texts)
        if field.role == role and (text := index.text_of_field(number, f)) is not None
    ]
    if not texts:
        return "no words"
    matchable = [text for text in texts if is_matchable(index, text, common)]
    if not matchable:
        return "common phrase"
    num_words = max(int(index.num_words[text]) for text in matchable)
    if num_words >= NGRAM_WORDS:
        return "13-grams"
    if num_words >= MIN_WORDS:
        return "whole text"
    num_texts_with_words = sum(len(word_keys(field.text)) > 0 for field in item.texts)
    return "with another text" if num_texts_with_words > 1 else "too short"


def summarize(
    index: ContaminationIndex,
    items: Sequence[ItemRow],
    matches: Sequence[MatchRow],
    common: np.ndarray,
    documents: np.ndarray,
) -> dict[str, Any]:
    """Returns counts as JSON values.

    Args:
      documents: int64 [num_ngrams], the number of documents with each n-gram.

    Returns:
      "sets": by name, the number of items, of items by search rule, of those that cannot be
      searched, of items of which an input or a context was found, of items of which an input
      remains in the corpus, and of documents with an input or a context; "common_phrases": the
      ignored n-grams in most documents, with the number of documents.
    """
    documents_of_set: dict[tuple[str, str], set[str]] = defaultdict(set)
    items_of_set: dict[tuple[str, str], set[int]] = defaultdict(set)
    for row in matches:
        documents_of_set[row.set_name, row.role].add(row.document)
        items_of_set[row.set_name, row.role].add(row.item_row)
    sets: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(item.set_name for item in items):
        rows = [item for item in items if item.set_name == name]
        sets[name] = {
            "items": len(rows),
            "search_rules": dict(sorted(Counter(row.rule for row in rows).items())),
            "items_not_searchable": sum(row.rule in NOT_SEARCHABLE for row in rows),
            "items_with_input_found": len(items_of_set[name, "input"]),
            "items_with_input_retained": sum(row.input_documents > 0 for row in rows),
            "items_with_context_found": len(items_of_set[name, "context"]),
            "documents_with_input": len(documents_of_set[name, "input"]),
            "documents_with_context": len(documents_of_set[name, "context"]),
        }
    (numbers,) = np.nonzero(common)
    order = np.argsort(-documents[numbers], kind="stable")[:_MAX_PHRASES]
    phrases = [
        {"phrase": _phrase(index, int(number)), "documents": int(documents[number])}
        for number in numbers[order]
    ]
    return {"sets": sets, "num_common_phrases": len(numbers), "common_phrases": phrases}


def _phrase(index: ContaminationIndex, ngram: int) -> str:
    """Returns an n-gram as an item has it."""
    item, field = index.fields[index.texts_with(ngram)[0]][0]
    words = Words.of(index.items[item].texts[field].text)
    for n, (positions, numbers) in index.find_ngrams(words).items():
        for position in positions[numbers == ngram]:
            start, end = words.span(int(position), int(position) + n)
            return " ".join(words.text[start:end].split())
    return ""


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
        lines.append(json.dumps([document.index, decision, [asdict(row) for row in rows]]))
    atomic_write(path, "".join(line + "\n" for line in lines))


def read_found(path: Path) -> Iterator[tuple[int, Decision | None, list[MatchRow]]]:
    """Yields (index of the document, decision, matches) from a file of `write_found`."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            index, values, rows = json.loads(line)
            decision = None if values is None else Decision(*values)
            yield index, decision, [MatchRow(**row) for row in rows]


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


@dataclass(frozen=True, kw_only=True)
class Decontamination:
    """Searches the items of evaluation sets in all documents of a corpus.

    Contexts are reported and never removed, since BERT's own corpus has the articles of SQuAD. The
    same holds for items of a split "train", which are no test.

    Attributes:
      sets: the evaluation sets.
      action: what is done with documents that contain an input.
      max_changed: the largest fraction of the documents that may be dropped or changed; more is an
        error, if more than 10 documents would change. Soldaini et al. 2024 (Dolma) stop at the same
        fraction.
      max_documents: an n-gram in at least this many documents, from at least three sources (all, if
        there are fewer), is a common phrase and ignored. Below 200 documents the limit is 5 % of
        the documents, at least 3.
    """

    FEW_DOCUMENTS: ClassVar[int] = 10

    sets: tuple[EvaluationSet, ...]
    action: Action = DropDocuments()
    max_changed: float = 0.001
    max_documents: int = 10

    def __post_init__(self) -> None:
        if not self.sets:
            raise ConfigError("decontamination: no evaluation set; expected at least one")
        check_range("max_changed", self.max_changed, at_least=0, at_most=1)
        check_range("max_documents", self.max_documents, at_least=2)

    def input_files(self) -> list[list[Any]]:
        """Returns name, size and time of change of the files of the evaluation sets."""
        paths = sorted(path for each in self.sets for path in _files_of(each))
        stats = [(path, os.stat(path)) for path in paths if os.path.isfile(path)]
        return [[os.path.basename(path), s.st_size, s.st_mtime_ns] for path, s in stats]

    def check_sets(self) -> None:
        """Reads the evaluation sets, so that a wrong file or column is an error before any work.

        Raises:
          UserError: a file cannot be read or does not have a column that is named.
          ConfigError: two sets have one name, or a task does not have a split that is named.
        """
        read_items(self.sets)

    def decide(self, corpus: Corpus, workers: Workers) -> None:
        """Writes the decisions about each work unit, and the three files of the report.

        Raises:
          UserError: an evaluation set cannot be read, or more than `max_changed` of the documents
            would be dropped or changed.
        """
        items = read_items(self.sets)
        write_items(items_path(corpus), items)
        index = load_index(items_path(corpus))
        counts = corpus.write_units(workers, "counts", write_counts, description="count n-grams")
        common, documents = self._common_ngrams(corpus, index, counts)
        with atomic_path(common_path(corpus)) as path, path.open("wb") as file:
            np.save(file, common)
        found = corpus.write_units(
            workers, "found", write_found, self.action, description="find items"
        )
        rows: list[MatchRow] = []
        decisions = [dict[int, Decision]() for _ in found]
        for unit, path in enumerate(found):
            for index_of_document, decision, matches in read_found(path):
                rows += matches
                if decision is not None:
                    decisions[unit][index_of_document] = decision
        num_documents = sum(read_counts(path)["num_documents"].item() for path in counts)
        self._check_changed(decisions, rows, num_documents)
        output = corpus.output_folder
        make_folder(output)
        of_items = item_rows(index, common, rows)
        write_rows(output / MATCHES_FILE, MatchRow, rows)
        write_rows(output / ITEMS_FILE, ItemRow, of_items)
        summary = summarize(index, of_items, rows, common, documents)
        write_json(output / SUMMARY_FILE, {"documents": num_documents, **summary})
        for unit, decisions_of_unit in enumerate(decisions):
            corpus.write_decisions(unit, decisions_of_unit)

    def _common_ngrams(
        self, corpus: Corpus, index: ContaminationIndex, paths: Sequence[Path]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns which n-grams are common phrases, and in how many documents each occurs."""
        by_source: dict[str, np.ndarray] = {}
        num_documents = 0
        for source, path in zip(corpus.sources, paths, strict=True):
            unit = read_counts(path)
            counts = by_source.setdefault(source, np.zeros(index.num_ngrams, np.int64))
            counts[unit["ngrams"]] += unit["counts"]
            num_documents += unit["num_documents"].item()
        documents = np.sum([*by_source.values()], axis=0)
        sources = np.sum([counts > 0 for counts in by_source.values()], axis=0)
        limit = self.max_documents
        return common_ngrams(documents, sources, num_documents, len(by_source), limit), documents

    def _check_changed(
        self, decisions: Sequence[dict[int, Decision]], rows: Iterable[MatchRow], documents: int
    ) -> None:
        """Raises an error if more than `max_changed` of the documents would be changed."""
        changed = sum(map(len, decisions))
        if changed <= max(self.FEW_DOCUMENTS, self.max_changed * documents):
            return
        pairs = {
            (row.set_name, row.document)
            for row in rows
            if row.action != "reported" and row.role == "input"
        }
        sets = Counter(name for name, _ in pairs).most_common(3)
        found = ", ".join(f"{name} ({count:,} documents)" for name, count in sets)
        raise UserError(
            f"{changed:,} of {documents:,} documents contain evaluation items and would be dropped "
            f"or changed, more than max_changed, which is {self.max_changed:.2%}; most are from "
            f"{found}. A source may contain the evaluation set itself: look at it with "
            "action=ReportOnly(), then leave the source out, or raise max_changed"
        )


def _files_of(evaluation_set: EvaluationSet) -> Iterator[str]:
    """Yields the files of an evaluation set, as far as its config names them."""
    if isinstance(evaluation_set, FileItems):
        yield evaluation_set.file
        return
    task = evaluation_set.task
    folder = getattr(task, "folder", None)
    if isinstance(folder, str):
        names = GLUE_TASKS[task.task].folder_names if isinstance(task, Glue) else (".",)
        for path in (Path(folder) / name for name in names):
            yield from (map(str, path.iterdir()) if path.is_dir() else ())
    for field in ("train", "dev", "test", "file"):
        value = getattr(task, field, None)
        if isinstance(value, str):
            yield value
