"""Defines what all kinds of raw files have in common: patterns that name the files.

Each kind is a subclass with the method `read_file`, which yields the documents of one file. A
document that cannot be read is yielded with a reason, so that the ledger has it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast
from xml.etree.ElementTree import Element, XMLPullParser

from bert_jax.data.corpus.source_files import SourceFile, find_source_files
from bert_jax.data.corpus.sources import Patterns, RawDocument
from bert_jax.errors import ConfigError
from bert_jax.text.files import DamagedFileError, read_chunks

DAMAGED, TOO_LARGE = "damaged file", "too large"
"""Reasons for dropping a whole file."""


@dataclass(frozen=True)
class FilePatterns:
    """Names files by one or more glob patterns.

    `PACKAGES` names the libraries that the text depends on; other versions make another corpus.
    """

    PACKAGES: ClassVar[tuple[str, ...]] = ()
    patterns: Patterns

    def __post_init__(self) -> None:
        patterns = (self.patterns,) if isinstance(self.patterns, str) else tuple(self.patterns)
        if not patterns or not all(patterns):
            raise ConfigError(f"{type(self).__name__}: no pattern; expected at least one")
        object.__setattr__(self, "patterns", patterns)

    def list_files(self) -> tuple[SourceFile, ...]:
        """Returns the files, sorted by path.

        Raises:
          UserError: a pattern matches no file, or all files are empty.
        """
        return find_source_files(tuple(self.patterns))

    def read_file(self, file: SourceFile) -> Iterator[RawDocument]:
        """Yields the documents of one file; each kind of file defines it."""
        raise NotImplementedError


def read_limited(path: str, max_bytes: int) -> bytes | RawDocument:
    """Reads a whole file that may be compressed, or returns a document with the reason why not."""
    chunks: list[bytes] = []
    size = 0
    try:
        for chunk in read_chunks(path):
            size += len(chunk)
            if size > max_bytes:
                return RawDocument(key="1", reason=TOO_LARGE)
            chunks.append(chunk)
    except DamagedFileError:
        return RawDocument(key="1", reason=DAMAGED)
    return b"".join(chunks)


def xml_events(parser: "XMLPullParser[Any]") -> Iterator[tuple[str, Element]]:
    """Returns the events "start" and "end" of a parser, whose type in Python is wider."""
    return cast(Iterator[tuple[str, Element]], parser.read_events())
