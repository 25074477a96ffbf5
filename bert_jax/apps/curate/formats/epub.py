"""Reads books: EPUB files, and the text files of Project Gutenberg without their license."""

import lzma
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from posixpath import dirname, join, normpath
from typing import IO, ClassVar
from urllib.parse import unquote
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from bert_jax.apps.curate.formats.decoding import decode_bytes
from bert_jax.apps.curate.formats.html import MAX_PAGE_BYTES, NESTED, page_document
from bert_jax.apps.curate.formats.patterns import (
    DAMAGED,
    TOO_LARGE,
    FilePatterns,
    read_limited,
    xml_events,
)
from bert_jax.data.corpus.source_files import SourceFile
from bert_jax.data.corpus.sources import RawDocument
from bert_jax.errors import UserError

ENCRYPTED, NO_MARKERS = "encrypted", "no Gutenberg markers"

MAX_BOOK_BYTES = 100 << 20
"""The most decompressed bytes of a book: a zip file of 100 kB can have gigabytes inside."""
_MAX_PACKAGE_BYTES = 10 << 20
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    ParseError,
    KeyError,
    EOFError,
    ValueError,
)
_CONTAINER = "META-INF/container.xml"
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
class EpubFiles(FilePatterns):
    """Names EPUB files: `EpubFiles("books/*.epub")`; a book is a document, chapters in order."""

    PACKAGES: ClassVar[tuple[str, ...]] = ("resiliparse", "charset-normalizer")

    def read_file(self, file: SourceFile) -> Iterator[RawDocument]:
        """Yields the book as one document, with its reason if its content cannot be read.

        Raises:
          UserError: the file cannot be read.
        """
        reason = DAMAGED
        try:
            with zipfile.ZipFile(file.path) as archive:
                yield _book(archive)
                return
        except OSError as error:
            if error.errno is not None:  # errors of bz2 about the content have no number
                raise UserError(f"{file.path}: cannot be read ({error.strerror})") from None
        except _DAMAGE:
            pass
        except RecursionError:
            reason = NESTED
        except RuntimeError:  # zipfile: a password, unknown compression
            reason = ENCRYPTED
        yield RawDocument(key="1", reason=reason)


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


def _book(archive: zipfile.ZipFile) -> RawDocument:
    """Returns the text of the chapters in reading order."""
    if sum(info.file_size for info in archive.infolist()) > 10 * MAX_BOOK_BYTES:
        return RawDocument(key="1", reason=TOO_LARGE)
    container = _read_xml(archive, _CONTAINER)
    package = next((e.get("full-path", "") for e in container if _name(e) == "rootfile"), "")
    elements = _read_xml(archive, package)
    paths = {
        element.get("id", ""): normpath(
            join(dirname(package), unquote(element.get("href", "").partition("#")[0]))
        )
        for element in elements
        if _name(element) == "item" and "html" in element.get("media-type", "")
    }
    chapters: list[str] = []
    counts = Counter[str]()
    size = 0
    for element in elements:
        path = paths.get(element.get("idref", "")) if _name(element) == "itemref" else None
        if path is None:
            continue
        data = _read_member(archive, path, MAX_PAGE_BYTES)
        size += len(data)
        if len(data) > MAX_PAGE_BYTES or size > MAX_BOOK_BYTES:
            return RawDocument(key="1", reason=TOO_LARGE)
        page = page_document("1", data, main_content=False)
        counts.update(page.counts)
        if page.reason:
            counts[f"chapter left out: {page.reason}"] += 1
        chapters.append(page.text)
    title = next((e.text or "" for e in elements if _name(e) == "title"), "")
    text = "\n\n".join(filter(None, chapters))
    return RawDocument(key="1", text=text, counts=counts, fields={"title": title.strip()})


def _read_member(archive: zipfile.ZipFile, path: str, max_bytes: int) -> bytes:
    """Returns at most max_bytes + 1 bytes: the size that a zip file states may be wrong."""
    file: IO[bytes]
    with archive.open(path) as file:
        return file.read(max_bytes + 1)


def _read_xml(archive: zipfile.ZipFile, path: str) -> list[Element]:
    data = _read_member(archive, path, _MAX_PACKAGE_BYTES)
    if b"<!ENTITY" in data or len(data) > _MAX_PACKAGE_BYTES:
        raise ValueError("entities are not expected in the files of an EPUB package")
    parser = XMLPullParser(events=("start", "end"))
    parser.feed(data)
    parser.close()
    return [element for event, element in xml_events(parser) if event == "end"]


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]
