"""Configures `bert-jax curate`, and divides the files of the sources into work units."""

import hashlib
import json
import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any

from bert_jax.apps.curate.contamination.decontamination import Decontamination
from bert_jax.apps.curate.duplicates.exact import ExactDuplicates, RepeatedLines, RepeatedParagraphs
from bert_jax.apps.curate.duplicates.near import NearDuplicates
from bert_jax.apps.curate.edits import RepairMojibake, ReplacePrivateData
from bert_jax.apps.curate.formats.gutenberg import GutenbergFiles
from bert_jax.apps.curate.formats.html import HtmlFiles
from bert_jax.apps.curate.formats.parquet import ParquetFiles
from bert_jax.apps.curate.formats.patterns import FilePatterns
from bert_jax.apps.curate.formats.warc import WarcFiles
from bert_jax.apps.curate.formats.wikipedia import WikipediaDump
from bert_jax.apps.curate.rules import RuleSet
from bert_jax.config import config_lib as configs
from bert_jax.data.corpus.plan import balanced_groups, default_num_units
from bert_jax.data.corpus.source_files import SourceFile, is_remote, local_file
from bert_jax.data.corpus.sources import RawDocument, TextFiles
from bert_jax.errors import ConfigError, check_range
from bert_jax.text.sentences import get_sentence_splitter
from bert_jax.version import __version__

DocumentFiles = TextFiles | ParquetFiles | WikipediaDump | HtmlFiles | WarcFiles | GutenbergFiles
"""The kinds of files: each lists its files, and reads the documents of one."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Names raw documents. Of equal documents, the one of the earlier source is kept."""

    name: str
    files: DocumentFiles

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ConfigError(f"source {self.name!r}: expected a name without '/', such as 'books'")


@dataclass(frozen=True, kw_only=True)
class C4Lines:
    """Drops lines, and pages with few sentences, by the rules of `c4.py`."""

    splitter: str = "rules"

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
