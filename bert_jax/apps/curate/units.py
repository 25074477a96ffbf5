"""Filters the documents of one work unit: edits, C4's rules for lines, then the config's rule sets.

`clean_page` follows the code that produced C4, in its order and with its constants; the paper
differs in places. C4's filters by language and by a list of bad words are not applied.

The result is a spill file (`corpus.py`) with the text of the documents that are kept so far. It
depends on the unit and the plan only.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax.apps.curate.corpus import digest, match_digest, write_spill_lines
from bert_jax.apps.curate.model_signals import ModelSignal
from bert_jax.apps.curate.plan import CurationConfig, CurationUnit
from bert_jax.apps.curate.signals import TextView
from bert_jax.text.cleaning import normalize_text
from bert_jax.text.sentences import SentenceSplitter, get_sentence_splitter

MIN_WORDS_OF_LINE, MIN_SENTENCES, MAX_WORD_CHARACTERS = 5, 3, 1000

_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_END_MARKS, _ELLIPSIS = (".", "?", "!", '"'), "..."
_POLICY_LINES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)

FEW_SENTENCES = "C4: sentences"
"""The reason for dropping a page with too few sentences in the lines that are retained."""


@dataclass(frozen=True)
class CleanedPage:
    """Holds what C4's rules keep of a page.

    Attributes:
      text: the lines that are kept; "" if the page is dropped.
      reason: why the page is dropped; None to keep it.
      num_sentences: the sentences of the retained lines, counted until there are enough.
      removed_lines: the number of lines removed, by reason.
    """

    text: str
    reason: str | None
    num_sentences: int = 0
    removed_lines: Counter[str] = field(default_factory=Counter)


def clean_page(text: str, splitter: SentenceSplitter) -> CleanedPage:
    """Applies the rules to one page.

    Args:
      splitter: counts the sentences; C4's code uses NLTK's Punkt.
    """
    retained, removed, num_sentences = [], Counter[str](), 0
    for line in map(str.strip, text.splitlines()):
        if any(len(word) > MAX_WORD_CHARACTERS for word in line.split()):
            removed["long word"] += 1
            continue
        if not line:
            continue
        line = _CITATION.sub("", line)
        if not line.endswith(_END_MARKS) or line.endswith(_ELLIPSIS):
            removed["no end mark"] += 1
            continue
        if len(line.split()) < MIN_WORDS_OF_LINE:
            removed["few words"] += 1
            continue
        lower = line.lower()
        if "lorem ipsum" in lower:
            return CleanedPage("", "C4: lorem ipsum", removed_lines=removed)
        if "javascript" in lower:
            removed["javascript"] += 1
            continue
        if "{" in line:
            return CleanedPage("", "C4: curly bracket", removed_lines=removed)
        if any(words in lower for words in _POLICY_LINES):
            removed["policy"] += 1
            continue
        if num_sentences < MIN_SENTENCES:  # splitting takes most of the time
            num_sentences += len(splitter.split(line))
        retained.append(line)
    if num_sentences < MIN_SENTENCES:
        return CleanedPage("", FEW_SENTENCES, num_sentences, removed)
    return CleanedPage("\n".join(retained).strip(), None, num_sentences, removed)


def count_sentences(text: str, splitter: SentenceSplitter) -> int:
    """Returns the number of sentences in the lines of a cleaned page."""
    return sum(len(splitter.split(line)) for line in text.split("\n") if line.strip())


EMPTY = "empty"
"""The reason for dropping a document without a letter or a digit."""


@dataclass(frozen=True, kw_only=True)
class FilterResult:
    """Holds the decision about one document: the text that is kept, or why it is dropped."""

    text: str
    reason: str = ""
    value: float | None = None


def filter_document(text: str, config: CurationConfig, removed_lines: Counter[str]) -> FilterResult:
    """Normalizes a document and applies the rules for lines and documents, in this order.

    Args:
      removed_lines: gets the number of lines removed, by reason.
    """
    cleaned = clean_lines(text, config, removed_lines)
    if cleaned.reason:
        return cleaned
    reason, value = _check_rules(cleaned.text, config)
    return FilterResult(text="" if reason else cleaned.text, reason=reason, value=value)


def edit_text(text: str, config: CurationConfig, counts: Counter[str]) -> str:
    """Applies the edits of the config to a raw text; adds what they change to `counts`."""
    for edit in config.edits:
        text = edit.apply(text, counts)
    return text


def clean_lines(text: str, config: CurationConfig, removed_lines: Counter[str]) -> FilterResult:
    """Normalizes a document and applies the rules for lines; arguments as `filter_document`."""
    text = normalize_text(text).strip()
    if not any(map(str.isalnum, text)):
        return FilterResult(text="", reason=EMPTY)
    if config.lines is None:
        return FilterResult(text=text)
    page = clean_page(text, get_sentence_splitter(config.lines.splitter))
    removed_lines.update(page.removed_lines)
    if page.reason is None:
        return FilterResult(text=page.text)
    value = float(page.num_sentences) if page.reason == FEW_SENTENCES else None
    return FilterResult(text="", reason=page.reason, value=value)


def check_text(text: str, config: CurationConfig) -> tuple[str, float | None]:
    """Checks a text again from which a step removed lines that passed the rules for lines.

    Returns:
      The reason to drop the document, "" to keep it, and the value that broke a rule.
    """
    if not any(map(str.isalnum, text)):
        return EMPTY, None
    if config.lines is not None:
        num_sentences = count_sentences(text, get_sentence_splitter(config.lines.splitter))
        if num_sentences < MIN_SENTENCES:
            return FEW_SENTENCES, float(num_sentences)
    return _check_rules(text, config)


def _check_rules(text: str, config: CurationConfig) -> tuple[str, float | None]:
    """Returns the first rule for documents that a text breaks, as `check_text`."""
    view = TextView(text)
    values: dict[str | ModelSignal, float] = {}
    for rule_set in config.rule_sets:
        for rule in rule_set.rules:
            if rule.signal not in values:  # each signal is computed once
                values[rule.signal] = rule.compute(view)
            value = values[rule.signal]
            if not rule.allows(value):
                return rule_set.reason(rule), value
    return "", None


def write_spill(path: Path, unit: CurationUnit, config: CurationConfig, fingerprint: str) -> None:
    """Decides about the documents of a unit and writes its spill file.

    Args:
      fingerprint: of the plan, by which a later run recognizes a finished file.
    """
    write_spill_lines(path, _spill_lines(unit, config, fingerprint))


def _spill_lines(
    unit: CurationUnit, config: CurationConfig, fingerprint: str
) -> Iterator[dict[str, Any]]:
    removed_lines, read_counts, num_documents = Counter[str](), Counter[str](), 0
    for document in unit.documents():
        result = FilterResult(text="", reason=document.reason)
        if not document.reason:
            text = edit_text(document.text, config, read_counts)
            result = filter_document(text, config, removed_lines)
        read_counts.update(document.counts)
        yield {
            "id": document.key,
            "digest": digest(document.text),
            "characters": len(document.text),
            "reason": result.reason,
            "value": result.value,
            "key": "" if result.reason else match_digest(result.text),
            "text": result.text,
            "fields": {} if result.reason else dict(document.fields),
        }
        num_documents += 1
    yield {
        "plan": fingerprint,
        "documents": num_documents,
        "removed_lines": dict(sorted(removed_lines.items())),
        "read_counts": dict(sorted(read_counts.items())),
    }
