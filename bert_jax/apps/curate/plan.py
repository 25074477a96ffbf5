"""Configures `bert-jax curate`: sources, edits, rules, steps; divides files into work units.

Edits replace private data. Names of people remain: removing them harms models that recognize
entities. The replacements are plain words, because placeholders such as |||EMAIL_ADDRESS||| become
a dozen tokens.

A rule is a signal and a limit. Limits are data: a recipe replaces a rule with
`dataclasses.replace`, or leaves it out.
"""

import hashlib
import ipaddress
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any

from bert_jax.apps.curate.decontamination import Decontamination
from bert_jax.apps.curate.exact_duplicates import ExactDuplicates, RepeatedLines, RepeatedParagraphs
from bert_jax.apps.curate.formats.files import (
    FilePatterns,
    GutenbergFiles,
    ParquetFiles,
    repair_mojibake,
)
from bert_jax.apps.curate.formats.web import HtmlFiles, WarcFiles
from bert_jax.apps.curate.formats.wikipedia import WikipediaDump
from bert_jax.apps.curate.model_signals import LanguageProbability, ModelSignal
from bert_jax.apps.curate.near_duplicates import NearDuplicates
from bert_jax.apps.curate.signals import DUPLICATE_NGRAMS, SIGNALS, TOP_NGRAMS, TextView
from bert_jax.config import config_lib as configs
from bert_jax.data.corpus.plan import balanced_groups, default_num_units
from bert_jax.data.corpus.source_files import SourceFile, is_remote, local_file
from bert_jax.data.corpus.sources import RawDocument, TextFiles
from bert_jax.errors import ConfigError, check_range, did_you_mean
from bert_jax.text.sentences import get_sentence_splitter
from bert_jax.version import __version__

# The parts have limits of RFC 5321, which also bounds the time on lines without spaces.
_EMAIL = re.compile(
    r"(?<![\w.+-])[A-Za-z0-9_%+-][A-Za-z0-9._%+-]{0,63}@"
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.){1,8}[A-Za-z]{2,24}(?![\w-])"
)
_IP = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
# "version 1.2.3.4", "v. 1.2.3.4", "section 2.1.3.4" are no addresses.
_NUMBERED = re.compile(
    r"(?:version|ver|release|section|chapter|build|rev|v|§)\.?\s*$", re.IGNORECASE
)
_CONTEXT_CHARACTERS = 12


@dataclass(frozen=True, kw_only=True)
class ReplacePrivateData:
    """Replaces e-mail addresses and public IP addresses by fixed words; None leaves them."""

    email: str | None = "email address"  # what stands for an e-mail address
    ip: str | None = "IP address"  # what stands for a public IPv4 address

    def apply(self, text: str, counts: Counter[str]) -> str:
        """Returns the text with replacements; adds their numbers to `counts`."""

        def replace_ip(match: re.Match[str]) -> str:
            before = text[max(0, match.start() - _CONTEXT_CHARACTERS) : match.start()]
            if _NUMBERED.search(before) or not _is_public(match[0]):
                return match[0]
            counts["private data: IP address"] += 1
            return str(self.ip)

        if self.ip is not None:
            text = _IP.sub(replace_ip, text)
        if self.email is not None and "@" in text:
            text, number = _EMAIL.subn(self.email, text)
            if number:
                counts["private data: e-mail address"] += number
        return text


@dataclass(frozen=True, kw_only=True)
class RepairMojibake:
    """Repairs text that was decoded with the wrong encoding: "cafÃ©" becomes "café"."""

    def apply(self, text: str, counts: Counter[str]) -> str:
        """Returns the repaired text; adds 1 to `counts` if it changed."""
        repaired = repair_mojibake(text)
        if repaired != text:
            counts["mojibake: repaired documents"] += 1
        return repaired


def _is_public(address: str) -> bool:
    try:
        return ipaddress.IPv4Address(address).is_global
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Keeps documents whose signal is within the limits; a limit of None means no limit.

    Attributes:
      signal: a name in `SIGNALS`, or a signal that needs a file.
    """

    signal: str | ModelSignal
    at_least: float | None = None  # the smallest value that is kept
    at_most: float | None = None  # the largest value that is kept

    def __post_init__(self) -> None:
        if isinstance(self.signal, str) and self.signal not in SIGNALS:
            hint = did_you_mean(self.signal, SIGNALS) or f"expected one of {', '.join(SIGNALS)}"
            raise ConfigError(f"rule: there is no signal {self.signal!r}; {hint}")
        if self.at_least is None and self.at_most is None:
            raise ConfigError(f"rule {self.name}: no limit; expected at_least, at_most or both")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ConfigError(
                f"rule {self.name}: at_least is {self.at_least} and at_most {self.at_most}, "
                "which drops every document"
            )

    @property
    def name(self) -> str:
        """Returns the name of the signal."""
        return self.signal if isinstance(self.signal, str) else self.signal.name

    def compute(self, view: TextView) -> float:
        """Returns the signal of a document."""
        if isinstance(self.signal, str):
            return SIGNALS[self.signal](view)
        return self.signal.compute(view)

    def allows(self, value: float) -> bool:
        """Returns whether a document with this value of the signal is kept."""
        if self.at_least is not None and value < self.at_least:
            return False
        return self.at_most is None or value <= self.at_most


@dataclass(frozen=True, kw_only=True)
class RuleSet:
    """Groups rules under a name, which is part of the reason in the ledger."""

    name: str  # begins the reason in the ledger
    rules: tuple[Rule, ...]  # a document must be within the limits of all

    def __post_init__(self) -> None:
        if not self.rules:
            raise ConfigError(f"rule set {self.name!r}: no rule; expected at least one")

    def reason(self, rule: Rule) -> str:
        """Returns the reason in the ledger for a document that breaks a rule."""
        return f"{self.name}: {rule.name}"


GOPHER_QUALITY = RuleSet(
    name="Gopher quality",
    rules=(
        Rule(signal="words", at_least=50, at_most=100_000),
        Rule(signal="mean_word_length", at_least=3, at_most=10),
        Rule(signal="hashes_per_token", at_most=0.1),
        Rule(signal="ellipses_per_token", at_most=0.1),
        Rule(signal="bullet_lines", at_most=0.9),
        Rule(signal="ellipsis_lines", at_most=0.3),
        Rule(signal="tokens_with_letter", at_least=0.8),
        Rule(signal="stop_words", at_least=2),
    ),
)
"""The rules of Rae et al. 2021 (Gopher), appendix A.1.1, for English."""

_TOP_LIMITS = dict(zip(TOP_NGRAMS, (0.20, 0.18, 0.16), strict=True))
_DUPLICATE_LIMITS = dict(zip(DUPLICATE_NGRAMS, (0.15, 0.14, 0.13, 0.12, 0.11, 0.10), strict=True))

GOPHER_REPETITION = RuleSet(
    name="Gopher repetition",
    rules=(
        Rule(signal="duplicate_paragraphs", at_most=0.3),
        Rule(signal="duplicate_paragraph_characters", at_most=0.2),
        Rule(signal="duplicate_lines", at_most=0.3),
        Rule(signal="duplicate_line_characters", at_most=0.2),
        *(Rule(signal=f"top_{n}gram_characters", at_most=x) for n, x in _TOP_LIMITS.items()),
        *(
            Rule(signal=f"duplicate_{n}gram_characters", at_most=x)
            for n, x in _DUPLICATE_LIMITS.items()
        ),
    ),
)
"""The rules of Rae et al. 2021, table A1."""

FINEWEB_QUALITY = RuleSet(
    name="FineWeb quality",
    rules=(
        Rule(signal="lines_ending_a_sentence", at_least=0.12),
        Rule(signal="short_lines", at_most=0.67),
        # Penedo et al. 2024 have 0.1 in the text; the code that made the data set has 0.01.
        Rule(signal="duplicate_line_characters", at_most=0.01),
        Rule(signal="newlines_per_token", at_most=0.3),
    ),
)
"""The rules that Penedo et al. 2024 (FineWeb), section 3.5, add to the rules of C4 and Gopher."""


def in_language(code: str | None) -> tuple[RuleSet, ...]:
    """Returns the rule that keeps documents in a language, with FineWeb's limit; () for None."""
    if code is None:
        return ()
    rule = Rule(signal=LanguageProbability(code), at_least=0.65)
    return (RuleSet(name="language", rules=(rule,)),)


DocumentFiles = TextFiles | ParquetFiles | WikipediaDump | HtmlFiles | WarcFiles | GutenbergFiles
"""The kinds of files: each lists its files, and reads the documents of one."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Names raw documents. Of equal documents, the one of the earlier source is kept."""

    name: str  # part of the names of shards and of the ledger
    files: DocumentFiles  # what is read, and how

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ConfigError(f"source {self.name!r}: expected a name without '/', such as 'books'")


@dataclass(frozen=True, kw_only=True)
class C4Lines:
    """Drops lines, and pages with few sentences, by the rules of C4 (`units.clean_page`)."""

    splitter: str = "rules"  # as `prepare --sentences`: "rules", "lines" or "sentencex:LANG"

    def __post_init__(self) -> None:
        get_sentence_splitter(self.splitter)  # raises for an unknown name before any work


Step = ExactDuplicates | NearDuplicates | RepeatedLines | RepeatedParagraphs | Decontamination


@dataclass(frozen=True, kw_only=True)
class CurationConfig:
    """Configures a curated corpus.

    Attributes:
      sources: raw documents, in order of priority.
      edits: how the text of documents is changed, before all rules; by default not at all.
      lines: how lines are dropped; None keeps all lines.
      rule_sets: rules that drop documents; the first broken rule is the reason in the ledger.
      steps: what compares the documents of all sources that are retained, in this order; each step
        gets what the earlier ones retained.
      max_dropped: the largest fraction of the characters that may be dropped; more is an error,
        because a wrong limit can drop nearly everything.
      num_shards: about how many output shards are written, at least one for each source; None:
        depends on the size of the input.
    """

    sources: tuple[Source, ...]
    edits: tuple[ReplacePrivateData | RepairMojibake, ...] = ()
    lines: C4Lines | None = None
    rule_sets: tuple[RuleSet, ...] = ()
    steps: tuple[Step, ...] = (ExactDuplicates(),)
    max_dropped: float = 0.95
    num_shards: int | None = None

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        if not names:
            raise ConfigError("curation: no source; expected at least one")
        if len(set(names)) < len(names):
            raise ConfigError(f"curation: two sources have one name; found {', '.join(names)}")
        reasons: dict[str, object] = {}  # the ledger has the reason only, not the file of a signal
        for rule_set in self.rule_sets:
            for rule in rule_set.rules:
                reason = rule_set.reason(rule)
                if reasons.setdefault(reason, rule.signal) != rule.signal:
                    raise ConfigError(
                        f"curation: two different signals have the reason {reason!r} in the "
                        "ledger; put their rules into rule sets with different names"
                    )
        for step in self.steps:
            if isinstance(step, NearDuplicates):
                step.check_sources(names)
        if sum(isinstance(step, Decontamination) for step in self.steps) > 1:
            raise ConfigError(
                "curation: two steps Decontamination; expected one, with the sets of both"
            )
        for step, next_step in pairwise(self.steps):
            if isinstance(step, Decontamination):
                raise ConfigError(
                    f"curation: the step {type(next_step).__name__} comes after Decontamination; "
                    "expected Decontamination last, because it reports what the finished corpus "
                    "contains"
                )
        check_range("max_dropped", self.max_dropped, at_least=0, at_most=1)
        if self.num_shards is not None:
            check_range("num_shards", self.num_shards, at_least=1)


@dataclass(frozen=True, kw_only=True)
class CurationUnit:
    """Holds the files of one work unit, in order, each with the name that ids of documents have."""

    source: str
    reader: DocumentFiles
    files: tuple[SourceFile, ...]
    names: tuple[str, ...]

    def documents(self) -> Iterator[RawDocument]:
        """Yields the documents, also those without text, with their ids as keys."""
        for file, name in zip(self.files, self.names, strict=True):
            with local_file(file) as local:
                for document in self.reader.read_file(local):
                    # A key may have bytes of a damaged file; ids are text, also in Parquet files.
                    key = document.key.encode("utf-8", "backslashreplace").decode()
                    yield replace(document, key=f"{self.source}/{name}:{key}")


def make_units(config: CurationConfig) -> list[CurationUnit]:
    """Divides the files of all sources into work units, each of one source.

    Raises:
      UserError: a pattern matches no file, or all files of a source are empty.
    """
    files = [source.files.list_files() for source in config.sources]
    bytes_of_sources = [sum(file.size_bytes for file in each) for each in files]
    num_units = config.num_shards or default_num_units(sum(bytes_of_sources))
    work: list[CurationUnit] = []
    for source, found, size in zip(config.sources, files, bytes_of_sources, strict=True):
        names = stable_names(found)
        num_units_of_source = max(1, round(num_units * size / sum(bytes_of_sources)))
        for group in balanced_groups([file.size_bytes for file in found], num_units_of_source):
            work.append(
                CurationUnit(
                    source=source.name,
                    reader=source.files,
                    files=tuple(found[i] for i in group),
                    names=tuple(names[i] for i in group),
                )
            )
    return work


def make_plan(config: CurationConfig, work: Sequence[CurationUnit]) -> dict[str, Any]:
    """Returns what must be the same for the work of an earlier run to be kept."""
    files = [
        [unit.source, name, file.size_bytes, file.version]
        for unit in work
        for name, file in zip(unit.names, unit.files, strict=True)
    ]
    evaluation_files = [
        file
        for step in config.steps
        if isinstance(step, Decontamination)
        for file in step.input_files()
    ]
    settings = configs.to_json(config)
    for source in settings["sources"]:
        for name in ("splits", "patterns"):  # `files` has what these match
            source["files"].pop(name, None)
    # Limits that change no document, so a refused run can continue with others.
    settings.pop("max_dropped")
    for step in settings["steps"]:
        step.pop("max_changed", None)
    rules = [rule for rule_set in config.rule_sets for rule in rule_set.rules]
    models = {
        str(rule.signal): rule.signal.fingerprint()
        for rule in rules
        if not isinstance(rule.signal, str)
    }
    return ({"models": models} if models else {}) | {
        "bert_jax": __version__,
        # Categories of characters and their cases differ between versions of Unicode.
        "unicode": unicodedata.unidata_version,
        "packages": package_versions(config),
        "config": settings,
        "files": _digest(files),
        "evaluation_files": _digest(evaluation_files),
        "units": len(work),
    }


def _digest(files: list[list[Any]]) -> str:
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def check_curation(result: object, recipe: str) -> CurationConfig:
    """Returns what a recipe returned if it is a config of curation.

    Raises:
      ConfigError: it is something else.
    """
    if not isinstance(result, CurationConfig):
        raise ConfigError(
            f"{recipe}: get_config returned {type(result).__name__}; `bert-jax curate` expects a "
            "CurationConfig, as in the recipe 'curate/web'"
        )
    return result


def package_versions(config: CurationConfig) -> dict[str, str]:
    """Returns the versions of the libraries that extract or repair the text."""
    names = ["ftfy"] * (RepairMojibake() in config.edits)
    for source in config.sources:
        if isinstance(source.files, FilePatterns):
            names += source.files.PACKAGES
    return {name: _version(name) for name in sorted(set(names))}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""  # reading the first file reports the missing extra


def stable_names(files: tuple[SourceFile, ...]) -> tuple[str, ...]:
    """Returns names of files for the ids of documents: paths from the folder of all files on.

    Bytes of a name that are not UTF-8 are written as "\\xff".
    """
    # Not the absolute path of "gs://bucket/a", which would depend on the working directory.
    paths = [
        os.path.normpath(f"/{file.path}") if is_remote(file.path) else os.path.abspath(file.path)
        for file in files
    ]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    relative = (os.path.relpath(path, folder).replace(os.sep, "/") for path in paths)
    return tuple(os.fsencode(name).decode("utf-8", "backslashreplace") for name in relative)
