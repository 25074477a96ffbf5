"""Collects what a report on a curated corpus shows: counts, examples of each reason, a sample.

It reads the ledger, and then the input once more, because the ledger holds no texts.
"""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bert_jax.apps.curate.duplicates.near import NearDuplicates
from bert_jax.apps.curate.ledger import RETAINED, LedgerRow, read_ledger
from bert_jax.apps.curate.plan import CurationConfig, make_units
from bert_jax.apps.curate.sample import (
    MeasuredDocument,
    is_sampled,
    measure,
    read_raw_documents,
    sample_fraction,
)
from bert_jax.apps.curate.units import edit_text
from bert_jax.text.cleaning import normalize_text

EXAMPLES_PER_REASON, NUM_PAIRS = 5, 10
MAX_TEXT_CHARACTERS = 3000


class Flow(NamedTuple):
    """Counts the documents with one reason, and the characters of their raw and kept texts."""

    documents: int = 0
    characters: int = 0
    retained_characters: int = 0

    def with_row(self, row: LedgerRow) -> "Flow":
        """Adds a document."""
        return Flow(
            self.documents + 1,
            self.characters + row.characters,
            self.retained_characters + row.retained_characters,
        )


@dataclass(kw_only=True)
class Review:
    """Holds the content of a report.

    Attributes:
      flows: source -> reason ("" for kept documents) -> counts.
      examples: reason -> some of its documents, chosen by hash.
      pairs: documents that were dropped for a similar one that was kept, chosen by hash.
      texts: the beginnings of the texts of all examples and pairs, edited and normalized, by id.
      fraction: fraction of the documents that was measured, chosen by hash.
      num_sampled: the documents in the sample.
      measured: the documents of the sample that the rules for lines keep.
    """

    flows: dict[str, dict[str, Flow]] = field(default_factory=dict)
    examples: dict[str, list[LedgerRow]] = field(default_factory=dict)
    pairs: list[LedgerRow] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    fraction: float = 1.0
    num_sampled: int = 0
    measured: list[MeasuredDocument] = field(default_factory=list)

    def reasons(self) -> dict[str, Flow]:
        """Returns the counts of all sources by reason, the most frequent first."""
        totals: dict[str, Flow] = {}
        for flows in self.flows.values():
            for reason, flow in flows.items():
                sums = zip(totals.get(reason, Flow()), flow, strict=True)
                totals[reason] = Flow(*map(sum, sums))
        return dict(sorted(totals.items(), key=lambda item: -item[1].documents))


# The input is read a second time, because a ledger with texts would be as large as the input. All
# rules are evaluated, not only the first that is broken, so that "what only this rule drops" does
# not depend on the order of the rules.
def review(config: CurationConfig, output: Path) -> Review:
    """Collects the content of the report on the corpus in the folder `output`.

    Raises:
      UserError: the ledger or the input cannot be read.
    """
    result = Review()
    chosen: dict[str, _Smallest] = {}
    pairs = _Smallest(NUM_PAIRS)
    for path in sorted(output.glob("ledger-*.parquet")):
        for row in read_ledger([path]):  # one file at a time
            flows = result.flows.setdefault(row.source, {})
            flows[row.reason] = flows.get(row.reason, Flow()).with_row(row)
            # Contaminated documents have a twin and a value too: an evaluation item.
            if row.reason == NearDuplicates.REASON:
                pairs.add(row)
            elif row.reason != RETAINED:
                chosen.setdefault(row.reason, _Smallest(EXAMPLES_PER_REASON)).add(row)
    result.examples = {reason: chosen[reason].rows() for reason in sorted(chosen)}
    result.pairs = pairs.rows()
    _read_texts(config, result)
    return result


class _Smallest:
    """Keeps the rows whose hashes are the smallest, whatever their order."""

    def __init__(self, count: int):
        self._count = count
        self._heap: list[tuple[int, str, LedgerRow]] = []

    def add(self, row: LedgerRow) -> None:
        # Equal documents have one hash; the id decides then, so that rows are never compared.
        item = (-int(row.digest, 16), row.id, row)
        if len(self._heap) < self._count:
            heapq.heappush(self._heap, item)
        elif item > self._heap[0]:
            heapq.heapreplace(self._heap, item)

    def rows(self) -> list[LedgerRow]:
        return [row for _, _, row in sorted(self._heap, reverse=True)]


def _read_texts(config: CurationConfig, result: Review) -> None:
    """Reads the texts of the examples, and measures the sample."""
    wanted = {row.id for rows in result.examples.values() for row in rows}
    wanted |= {name for row in result.pairs for name in (row.id, row.twin)}
    work = make_units(config)
    result.fraction = sample_fraction(work)
    for _, document, text_digest in read_raw_documents(work):
        if document.key in wanted:
            # Edited, so that the report does not show private data that the shards lack. The whole
            # text, because an address at the cut would not be recognized.
            edited = edit_text(document.text, config, Counter())
            text = normalize_text(edited[: 2 * MAX_TEXT_CHARACTERS])
            result.texts[document.key] = text[:MAX_TEXT_CHARACTERS]
        if is_sampled(text_digest, result.fraction):
            result.num_sampled += 1
            measured = measure(document, config)
            if measured is not None:
                result.measured.append(measured)


def count_broken(measured: Iterable[MeasuredDocument]) -> tuple[Counter[str], Counter[str]]:
    """Counts for each rule the documents that break it, and those that break no other rule."""
    broken, only = Counter[str](), Counter[str]()
    for document in measured:
        broken.update(set(document.broken))
        if len(set(document.broken)) == 1:
            only[document.broken[0]] += 1
    return broken, only
