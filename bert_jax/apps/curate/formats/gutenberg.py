"""Reads the text files of Project Gutenberg without their license."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from bert_jax.apps.curate.formats.decoding import decode_bytes
from bert_jax.apps.curate.formats.patterns import FilePatterns, read_limited
from bert_jax.data.corpus.source_files import SourceFile
from bert_jax.data.corpus.sources import RawDocument

NO_MARKERS = "no Gutenberg markers"
MAX_BOOK_BYTES = 100 << 20

_START = re.compile(
    r"^\s*\*\*\*\s*START OF TH(?:IS|E) PROJECT GUTENBERG.*?(?:\*\*\*|$)"
    r"|^\*END\*?\s*THE SMALL PRINT.*$",
    re.IGNORECASE | re.MULTILINE,
)
_END = re.compile(
    r"^\s*\*\*\*\s*END OF TH(?:IS|E) PROJECT GUTENBERG|^\s*End of (?:the )?Project Gutenberg",
    re.IGNORECASE | re.MULTILINE,
)
# Notes of those who made the file, at the beginning of the book.
_PRODUCERS = re.compile(
    r"\A\s*(?:Produced|E-text prepared|Transcribed|This e?book was produced)\b.*?\n\s*\n",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class GutenbergFiles(FilePatterns):
    """Names text files of Project Gutenberg: `GutenbergFiles("pg*.txt")`; a book is a document.

    The license before and after the book is removed. A file without both of the markers around the
    book is dropped.
    """

    PACKAGES: ClassVar[tuple[str, ...]] = ("charset-normalizer",)

    def read_file(self, file: SourceFile) -> Iterator[RawDocument]:
        """Yields the book as one document."""
        data = read_limited(file.path, MAX_BOOK_BYTES)
        if isinstance(data, RawDocument):
            yield data
            return
        decoded = decode_bytes(data)
        counts = {f"encoding: {decoded.encoding}": 1}
        text = gutenberg_book(decoded.text.replace("\r\n", "\n"))
        reason = "" if text else NO_MARKERS
        yield RawDocument(key="1", text=text, reason=reason, counts=counts)


def gutenberg_book(text: str) -> str:
    """Returns the book between the markers of Project Gutenberg; "" if one is missing."""
    start = _START.search(text)
    end = _END.search(text, start.end()) if start else None
    if start is None or end is None:
        return ""
    return _PRODUCERS.sub("", text[start.end() : end.start()].strip()).strip()
