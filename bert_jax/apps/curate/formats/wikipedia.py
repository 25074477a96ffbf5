"""Reads the articles of a dump of Wikipedia, "pages-articles" as XML, plain or compressed.

A multistream dump (`...-multistream.xml.bz2`) whose index (`...-multistream-index.txt.bz2`) is in
the same folder is divided into ranges of bytes, which are read in parallel.
"""

import bz2
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import quote
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from bert_jax.apps.curate.formats.patterns import DAMAGED, TOO_LARGE, FilePatterns, xml_events
from bert_jax.apps.curate.formats.wikitext import ArticleText
from bert_jax.data.corpus.source_files import SourceFile
from bert_jax.data.corpus.sources import RawDocument
from bert_jax.errors import ConfigError, UserError
from bert_jax.text.files import CHUNK_BYTES, DamagedFileError, read_chunks

NOT_AN_ARTICLE, REDIRECT = "not an article", "redirect"
TRUNCATED = "truncated archive"

RANGE_BYTES = 16 << 20
"""About this many compressed bytes of a multistream dump are one part."""
MAX_PAGE_BYTES = 64 << 20
"""MediaWiki limits a page to 2 MiB; a dump with a larger one is damaged."""
# The kinds of namespaces whose links show no text: files, media and categories.
_FILE_NAMESPACES = ("-2", "6", "14")
_CONTENT = ("prose", "all")


@dataclass(frozen=True)
class FileRange(SourceFile):
    """Describes the bytes from `start` to `end` of a file: whole streams of a multistream dump."""

    start: int = 0
    end: int = 0


@dataclass(frozen=True)
class WikipediaDump(FilePatterns):
    """Names dumps of Wikipedia: `WikipediaDump("enwiki-*-multistream*.xml*.bz2")`.

    `content` is "prose" for text passages only, as BERT used them, or "all" for headings and lists
    too. Pages of other namespaces and redirects are dropped with a reason. The shards have the
    title and the address of each article, which the license CC BY-SA asks for.
    """

    PACKAGES: ClassVar[tuple[str, ...]] = ("mwparserfromhell",)
    content: Literal["prose", "all"] = field(default="prose", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.content not in _CONTENT:
            raise ConfigError(f"content is {self.content!r}, expected one of {_CONTENT}")

    def list_files(self) -> tuple[SourceFile, ...]:
        """Returns the files, or the ranges of bytes of multistream dumps with an index."""
        files: list[SourceFile] = []
        for file in super().list_files():
            if "-multistream-index" not in Path(file.path).name:
                files += _ranges(file)
        return tuple(files)

    def read_file(self, file: SourceFile) -> Iterator[RawDocument]:
        """Yields the pages of a dump; what follows damage is one document with a reason."""
        site = _Site()
        try:
            for page in _pages(file, site):
                yield self._document(page, site)
        except (DamagedFileError, ParseError, _TooLargeError) as error:
            reason = TOO_LARGE if isinstance(error, _TooLargeError) else DAMAGED
            if site.num_pages and reason == DAMAGED:
                reason = TRUNCATED
            yield RawDocument(key=f"after page {site.num_pages}", reason=reason)

    def _document(self, page: Element, site: "_Site") -> RawDocument:
        texts = {_local_name(child): child.text or "" for child in page}
        document = RawDocument(key=texts.get("id", "").strip() or f"page {site.num_pages}")
        revisions = [child for child in page if _local_name(child) == "revision"]
        parts = {_local_name(part): part.text or "" for part in revisions[-1]} if revisions else {}
        wikitext = parts.get("text", "")
        if texts.get("ns", "0").strip() != "0" or parts.get("model", "wikitext") != "wikitext":
            return replace(document, reason=NOT_AN_ARTICLE)
        if "redirect" in texts or wikitext.lstrip()[:9].lower() == "#redirect":
            return replace(document, reason=REDIRECT)
        article = ArticleText(
            prose=self.content == "prose", file_namespaces=frozenset(site.file_namespaces)
        )
        text = article.convert(wikitext)
        title = texts.get("title", "")
        fields = {"title": title}
        if site.base:
            fields["url"] = f"{site.base}/{quote(title.replace(' ', '_'), safe='/:()')}"
        return replace(document, text=text, fields=fields, counts=article.counts)


@dataclass
class _Site:
    """Holds what the head of a dump says about the wiki, and counts its pages."""

    base: str = ""
    file_namespaces: set[str] = field(
        default_factory=lambda: {"file", "image", "media", "category"}
    )
    num_pages: int = 0

    def read(self, siteinfo: Element) -> None:
        """Reads the address of the wiki, and the names of its namespaces."""
        for element in siteinfo.iter():
            name, text = _local_name(element), element.text or ""
            if name == "base":
                self.base = text.strip().rpartition("/")[0]
            elif name == "namespace" and element.get("key") in _FILE_NAMESPACES:
                self.file_namespaces.add(text.strip().lower())


class _TooLargeError(Exception):
    pass


def _pages(file: SourceFile, site: _Site) -> Iterator[Element]:
    """Yields the element of each page; reads the head of the dump into `site`."""
    parser = XMLPullParser(events=("start", "end"))
    if isinstance(file, FileRange):
        if file.start:
            _read_head(file, site)
            parser.feed(b"<mediawiki>")
        raw_chunks = _range_chunks(file.path, file.start, file.end)
    else:
        raw_chunks = read_chunks(file.path)
    root: Element | None = None
    page_bytes = 0
    for chunk in raw_chunks:
        # Small steps: an article has 10 kB, and all that is fed is in memory at once.
        for start in range(0, len(chunk), 1 << 16):
            data = chunk[start : start + (1 << 16)]
            page_bytes += len(data)
            parser.feed(data)
            for event, element in xml_events(parser):
                if root is None:
                    root = element
                if event == "end" and _local_name(element) in ("page", "siteinfo"):
                    page_bytes = 0
                    if _local_name(element) == "page":
                        site.num_pages += 1
                        yield element
                    else:
                        site.read(element)
                    root.clear()
            if page_bytes > MAX_PAGE_BYTES:
                raise _TooLargeError
    if not isinstance(file, FileRange):
        parser.close()  # raises if the file ends in the middle


def _local_name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _read_head(file: FileRange, site: _Site) -> None:
    """Reads the first stream of a multistream dump, which has the names of the namespaces."""
    parser = XMLPullParser(events=("end",))
    for chunk in _range_chunks(file.path, 0, file.start):
        parser.feed(chunk)
        for _, element in xml_events(parser):
            if _local_name(element) == "siteinfo":
                site.read(element)
                return


def _range_chunks(path: str, start: int, end: int) -> Iterator[bytes]:
    """Yields the decompressed bytes of the bzip2 streams from `start` to `end`.

    Raises:
      DamagedFileError: a stream is damaged, or does not end at `end`.
    """
    decompressor, is_in_stream = bz2.BZ2Decompressor(), False
    with open(path, "rb") as file:
        file.seek(start)
        while start < end and (data := file.read(min(CHUNK_BYTES, end - start))):
            start += len(data)
            while data:
                try:
                    yield decompressor.decompress(data)
                except OSError as error:
                    raise DamagedFileError(f"{path}: damaged bzip2 file ({error})") from None
                data, is_in_stream = b"", not decompressor.eof
                if decompressor.eof:
                    data = decompressor.unused_data
                    decompressor = bz2.BZ2Decompressor()
    if start < end:
        raise DamagedFileError(f"{path}: ends at byte {start}, expected {end}; download it again")
    if is_in_stream:
        raise DamagedFileError(
            f"{path}: no bzip2 stream ends at byte {end}; download the dump, and its index if it "
            "has one, of the same date"
        )


def _ranges(file: SourceFile) -> list[SourceFile]:
    """Divides a multistream dump where its index has streams; [file] without an index."""
    path = Path(file.path)
    name = path.name.replace("-multistream", "-multistream-index", 1).replace(".xml", ".txt", 1)
    index = path.with_name(name)
    if "-multistream" not in path.name or path.suffix != ".bz2" or not index.is_file():
        return [file]
    starts, offset = [0], 0
    for offset in _stream_offsets(index):
        if offset - starts[-1] >= RANGE_BYTES:
            starts.append(offset)
    ends = [*starts[1:], file.size_bytes]
    if offset >= file.size_bytes:
        raise UserError(
            f"{index}: has a stream at byte {offset}, after the end of {path.name}; download "
            "both files of one dump"
        )
    return [
        FileRange(file.path, end - start, file.version, start, end)
        for start, end in zip(starts, ends, strict=True)
    ]


def _stream_offsets(index: Path) -> Iterator[int]:
    """Yields the offsets of an index: lines of "offset:page id:title", ascending."""
    rest, previous = b"", 0
    for chunk in read_chunks(index):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            number = line.partition(b":")[0]
            if not number.isdigit():
                raise UserError(f"{index}: not an index of a multistream dump: found {line[:50]!r}")
            if (offset := int(number)) > previous:
                previous = offset
                yield offset
