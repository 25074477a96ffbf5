"""Reads the main content of HTML pages, from HTML files and from WARC files."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from bert_jax.apps.curate.formats.files import TOO_LARGE, FilePatterns, decode_bytes, read_limited
from bert_jax.apps.curate.formats.wikipedia import TRUNCATED
from bert_jax.data.corpus.source_files import SourceFile
from bert_jax.data.corpus.sources import RawDocument
from bert_jax.errors import ConfigError, MissingExtraError, UserError

NO_MAIN_CONTENT, NESTED = "no main content", "nested too deeply"

MAX_PAGE_BYTES = 10 << 20
"""A longer page is data, not prose. The parsed page takes about twenty times the memory."""
_META_BYTES = 4096
_CHARSET = re.compile(rb"""<meta[^>]{1,300}?charset\s*=\s*["']?\s*([\w.:-]{1,40})""", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"""^<\?xml[^>]{1,200}?encoding\s*=\s*["']([\w.:-]{1,40})""")
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)(?:[^<>]{0,1000}?(/)>)?")
# Elements without an end tag, and those whose start tag ends the element before it.
_NOT_NESTED = frozenset(
    {
        *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param"),
        *("source", "track", "wbr", "p", "li", "dt", "dd", "tr", "td", "th", "thead", "tbody"),
        *("tfoot", "option", "optgroup", "colgroup", "html", "head", "body"),
    }
)
# Browsers do not nest deeper than this either. Time grows with the square of the depth.
_MAX_DEPTH = 512


@dataclass(frozen=True)
class HtmlFiles(FilePatterns):
    """Names HTML files: `HtmlFiles("docs/**/*.html")`, compressed or not; a page is a document.

    `content` is "main" for the main content, which leaves out navigation, or "all" text.
    """

    PACKAGES: ClassVar[tuple[str, ...]] = ("resiliparse", "charset-normalizer")
    # "main" content, or "all" text.
    content: Literal["main", "all"] = field(default="main", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_content(self.content)

    def read_file(self, file: SourceFile) -> Iterator[RawDocument]:
        """Yields the page as one document, with its reason if it has no text."""
        data = read_limited(file.path, MAX_PAGE_BYTES)
        if isinstance(data, RawDocument):
            yield data
        else:
            yield page_document("1", data, main_content=self.content == "main")


def check_content(content: str) -> None:
    """Raises ConfigError if `content` is neither "main" nor "all"."""
    if content not in ("main", "all"):
        raise ConfigError(f"content is {content!r}, expected 'main' or 'all'")


def page_document(
    key: str, data: bytes, declared: str = "", *, main_content: bool = True
) -> RawDocument:
    """Returns the text of an HTML page as a document.

    Args:
      declared: the encoding that HTTP names; "" for that in the page.
    """
    if len(data) > MAX_PAGE_BYTES:
        return RawDocument(key=key, reason=TOO_LARGE)
    head = data[:_META_BYTES]
    if not declared and (match := _CHARSET.search(head) or _XML_ENCODING.search(head)):
        declared = match[1].decode("ascii", "ignore")
    decoded = decode_bytes(data, declared)
    counts = {f"encoding: {decoded.encoding}": 1}
    if nesting_depth(decoded.text) > _MAX_DEPTH:
        return RawDocument(key=key, reason=NESTED, counts=counts)
    text = html_text(decoded.text, main_content=main_content)
    reason = "" if text else NO_MAIN_CONTENT
    return RawDocument(key=key, text=text, reason=reason, counts=counts)


def html_text(html: str, *, main_content: bool) -> str:
    """Returns the text of a page, blocks on lines of their own; no list marks or alternatives."""
    try:
        from resiliparse.extract.html2text import extract_plain_text
    except ImportError:
        raise MissingExtraError("HTML pages need resiliparse", "curate") from None
    # Lone surrogates cannot be converted to the parser's UTF-8.
    html = html.encode("utf-8", "replace").decode()
    text = extract_plain_text(
        html,
        preserve_formatting=True,
        main_content=main_content,
        list_bullets=False,
        alt_texts=False,
    )
    return str(text).strip()


def nesting_depth(html: str) -> int:
    """Returns about how deep elements are nested, without parsing; unclosed elements count."""
    depth = max_depth = 0
    for match in _TAG.finditer(html):
        if match[3] or match[2].lower() in _NOT_NESTED:
            continue
        depth = max(depth - 1, 0) if match[1] else depth + 1
        max_depth = max(max_depth, depth)
    return max_depth


NOT_HTML, HTTP_ERROR, DAMAGED_RECORD = "not HTML", "HTTP error", "damaged record"
MAX_BLOCK_BYTES = MAX_PAGE_BYTES + (1 << 20)
"""The most bytes of a record that are read: a page with the headers of HTTP."""
_HTML_TYPES = ("text/html", "application/xhtml+xml")


@dataclass(frozen=True)
class WarcFiles(FilePatterns):
    """Names WARC and WET files: `WarcFiles("crawl/*.warc.gz")`; each page is a document.

    Requests, metadata and revisit records are no pages. A page is named by its WARC-Record-ID; the
    shards have its address and the date.
    """

    PACKAGES: ClassVar[tuple[str, ...]] = ("resiliparse", "fastwarc", "charset-normalizer")
    content: Literal["main", "all"] = field(default="main", kw_only=True)  # as in `HtmlFiles`

    def __post_init__(self) -> None:
        super().__post_init__()
        check_content(self.content)

    def read_file(self, file: SourceFile) -> Iterator[RawDocument]:
        """Yields the pages; an archive that ends in the middle gives one document more.

        Raises:
          UserError: the file cannot be read.
        """
        number = 0
        records = _records(file.path)
        while True:
            try:
                if (record := next(records, None)) is None:
                    return
                block = record.reader.read(MAX_BLOCK_BYTES + 1)
            except (EOFError, ValueError, OSError) as error:
                if "os error" in str(error):  # fastwarc sets no `errno`
                    raise UserError(f"{file.path}: cannot be read ({error})") from None
                yield RawDocument(key=f"after record {number}", reason=TRUNCATED)
                return
            number += 1
            if (document := self._document(record, block, number)) is not None:
                yield document

    def _document(self, record: Any, block: bytes, number: int) -> RawDocument | None:
        """Returns the document of a response or of extracted text; None for other records.

        Args:
          block: the content of the record, with the headers of HTTP.
        """
        headers = record.headers
        kind = (headers.get("WARC-Type") or "").lower()
        if kind not in ("response", "conversion"):
            return None
        key = (headers.get("WARC-Record-ID") or "").strip("<>").removeprefix("urn:uuid:")
        document = RawDocument(key=key or f"record {number}")
        names = {"url": "WARC-Target-URI", "date": "WARC-Date"}
        fields = {name: headers.get(header) or "" for name, header in names.items()}
        if len(block) < min(record.content_length, MAX_BLOCK_BYTES):
            return replace(document, reason=TRUNCATED)
        if kind == "conversion":
            if len(block) > MAX_PAGE_BYTES:
                return replace(document, reason=TOO_LARGE)
            decoded = decode_bytes(block)
            counts = {f"encoding: {decoded.encoding}": 1}
            return replace(document, text=decoded.text, counts=counts, fields=fields)
        try:
            response = _http_response(record, block)
            if reason := _response_reason(record, response):
                return replace(document, reason=reason)
            data, charset = response.reader.read(MAX_PAGE_BYTES + 1), response.http_charset
        except (EOFError, ValueError, OSError):
            return replace(document, reason=DAMAGED_RECORD)
        if len(data) > MAX_PAGE_BYTES or len(block) > MAX_BLOCK_BYTES:
            return replace(document, reason=TOO_LARGE)
        page = page_document(document.key, data, charset or "", main_content=self.content == "main")
        return replace(page, fields=fields)


def _records(path: str) -> Iterator[Any]:
    try:
        from fastwarc.warc import ArchiveIterator, WarcRecordType
    except ImportError:
        raise MissingExtraError(f"{path}: WARC files need fastwarc", "curate") from None
    kinds = WarcRecordType.response | WarcRecordType.conversion
    # Detects gzip, Zstandard and LZ4 from the first bytes.
    yield from ArchiveIterator(
        path, record_types=kinds, parse_http=False, auto_decode="none", fsspec_args=False
    )


def _http_response(record: Any, block: bytes) -> Any:
    """Returns a record of the same content, with the headers parsed and the body decoded.

    A body that is not of the Content-Encoding of its headers is an error of this record. As an
    error of the archive's own record, it would end the iteration over the archive.
    """
    from fastwarc.warc import WarcRecord

    response = WarcRecord()
    response.is_http = record.is_http
    response.set_bytes_content(block)
    response.parse_http(auto_decode="all")
    return response


def _response_reason(record: Any, response: Any) -> str:
    if response.http_headers is None:
        # The headers of the last record may be cut off; a response of DNS has a body.
        return NOT_HTML if response.reader.read(1) else TRUNCATED
    if response.http_headers.status_code != 200:
        return HTTP_ERROR
    identified = record.headers.get("WARC-Identified-Payload-Type") or response.http_content_type
    if not identified and not response.reader.read(1):
        return TRUNCATED
    return "" if (identified or "").lower() in _HTML_TYPES else NOT_HTML
