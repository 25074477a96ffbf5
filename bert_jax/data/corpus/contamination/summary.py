"""Summarizes what was found of evaluation items, by item and by evaluation set."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.data.corpus.contamination.index import MIN_WORDS, NGRAM_WORDS, ContaminationIndex
from bert_jax.data.corpus.contamination.items import Item
from bert_jax.data.corpus.contamination.matching import is_matchable
from bert_jax.data.corpus.contamination.tables import (
    NOT_SEARCHABLE,
    ItemRow,
    MatchRow,
    SearchRule,
)
from bert_jax.data.corpus.contamination.words import Words, word_keys

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
            rule=_search_rule(index, i, item, common),
            input_documents=len(documents.get((i, "input", True), ())),
            context_documents=len(documents.get((i, "context", True), ())),
            removed_documents=len(documents.get((i, "input", False), ())),
        )
        for i, item in enumerate(index.items)
    ]


def _search_rule(
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
