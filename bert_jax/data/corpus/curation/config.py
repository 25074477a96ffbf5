"""Configures `bert-jax curate`: sources of raw text, the steps that drop documents, the output."""

from dataclasses import dataclass
from typing import ClassVar

from bert_jax.data.corpus.curation.rules import RuleSet
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.errors import ConfigError, check_range
from bert_jax.text.sentences import get_sentence_splitter


@dataclass(frozen=True, kw_only=True)
class Source:
    """Names raw documents. Of equal documents, the one of the earlier source is kept."""

    name: str
    files: TextFiles

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ConfigError(f"source {self.name!r}: expected a name without '/', such as 'books'")


@dataclass(frozen=True, kw_only=True)
class C4Lines:
    """Drops lines, and pages with few sentences, by the rules of `c4.py`."""

    splitter: str = "rules"

    def __post_init__(self) -> None:
        get_sentence_splitter(self.splitter)  # raises for an unknown name before any work


@dataclass(frozen=True, kw_only=True)
class ExactDuplicates:
    """Drops documents that are equal but for case, white space and compatible characters."""

    REASON: ClassVar[str] = "duplicate document"


@dataclass(frozen=True, kw_only=True)
class CurationConfig:
    """Configures a curated corpus.

    Attributes:
      sources: raw documents, in order of priority.
      lines: how lines are dropped; None keeps all lines.
      rule_sets: rules that drop documents; the first broken rule is the reason in the ledger.
      duplicates: how repeated documents are dropped; None keeps them.
      max_dropped: the largest fraction of the characters that may be dropped; more is an error,
        because a wrong limit can drop nearly everything.
      num_shards: the largest number of output shards; None: depends on the size of the input.
    """

    sources: tuple[Source, ...]
    lines: C4Lines | None = None
    rule_sets: tuple[RuleSet, ...] = ()
    duplicates: ExactDuplicates | None = ExactDuplicates()
    max_dropped: float = 0.95
    num_shards: int | None = None

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        if not names:
            raise ConfigError("curation: no source; expected at least one")
        if len(set(names)) < len(names):
            raise ConfigError(f"curation: two sources have one name; found {', '.join(names)}")
        check_range("max_dropped", self.max_dropped, at_least=0, at_most=1)
        if self.num_shards is not None:
            check_range("num_shards", self.num_shards, at_least=1)
