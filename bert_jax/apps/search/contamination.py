"""Finds the queries and texts of a retrieval set in the corpus that a model has read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.apps.curate.decontamination import Decontamination, search_rule
from bert_jax.apps.curate.item_matching import (
    ContaminationIndex,
    common_ngrams,
    count_documents,
    find_items,
)
from bert_jax.apps.search.documents import RetrievalSet
from bert_jax.data.corpus.contamination.found_items import NOT_SEARCHABLE
from bert_jax.data.corpus.contamination.items import Item, ItemText, Words
from bert_jax.data.corpus.sources import TextFiles


@dataclass(frozen=True, kw_only=True)
class FoundInCorpus:
    """Holds what a corpus contains of a retrieval set.

    Attributes:
      num_documents: of the corpus.
      has_query: bool [Q], whether it contains each query.
      is_searchable: bool [Q], whether a query could be found: one that is too short, or a common
        phrase, could not.
      has_text: bool [N], whether it contains each text.
    """

    num_documents: int
    has_query: np.ndarray
    is_searchable: np.ndarray
    has_text: np.ndarray


def find_in_corpus(retrieval_set: RetrievalSet, files: Sequence[str]) -> FoundInCorpus:
    """Searches queries and texts in a corpus by the rules of `bert-jax curate contamination`.

    A query of fewer than 8 words is found where it is a sentence near one of its relevant texts.
    All texts of the set are in memory as n-grams, and the corpus is read twice.

    Args:
      files: names and glob patterns of text and .jsonl files; a text file is one document.

    Raises:
      UserError: a pattern matches no file, or a file cannot be read.
    """
    texts = {document.id: document.text for document in retrieval_set.documents}
    items = [
        _item("queries", name, query, [texts[each] for each in retrieval_set.relevance[name]])
        for name, query in retrieval_set.queries.items()
    ]
    num_queries = len(items)
    items += [_item("texts", name, text) for name, text in texts.items()]
    index, source = ContaminationIndex(items), TextFiles(tuple(files))
    num_documents = 0

    def counted() -> Iterator[Words]:
        nonlocal num_documents
        for words in _documents(source):
            num_documents += 1
            yield words

    documents = count_documents(index, counted())
    limit = Decontamination.max_documents
    common = common_ngrams(documents, documents > 0, num_documents, 1, limit)
    is_found = np.zeros(len(items), np.bool_)
    for words in _documents(source):
        # The relevant texts of a query, its other fields, count as texts only.
        found = [match.item for match in find_items(index, words, common) if match.field == 0]
        is_found[found] = True
    rules = [search_rule(index, n, item, common) for n, item in enumerate(items[:num_queries])]
    return FoundInCorpus(
        num_documents=num_documents,
        has_query=is_found[:num_queries],
        is_searchable=np.array([rule not in NOT_SEARCHABLE for rule in rules], np.bool_),
        has_text=is_found[num_queries:],
    )


def _item(set_name: str, name: str, text: str, relevant: Sequence[str] = ()) -> Item:
    contexts = [ItemText(field="relevant", role="context", text=each) for each in relevant]
    searched = ItemText(field="text", role="input", text=text)
    return Item(set_name=set_name, split="test", id=name, texts=(searched, *contexts))


def _documents(source: TextFiles) -> Iterator[Words]:
    for file in source.list_files():
        for document in source.read_file(file):
            yield Words.of(document.text)
