"""Reads the pages of web archives: WARC files of responses, and WET files of extracted text."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from bert_jax.data.corpus.formats.decoding import decode_bytes
from bert_jax.data.corpus.formats.html import MAX_PAGE_BYTES, check_content, page_document
from bert_jax.data.corpus.formats.patterns import TOO_LARGE, FilePatterns
from bert_jax.data.corpus.formats.wikipedia import TRUNCATED
from bert_jax.data.corpus.sources import RawDocument, SourceFile
from bert_jax.errors import MissingExtraError

NOT_HTML, HTTP_ERROR = "not HTML", "HTTP error"
_HTML_TYPES = ("text/html", "application/xhtml+xml")


@dataclass(frozen=True)
class WarcFiles(FilePatterns):
    """Names WARC and WET files: `WarcFiles("crawl/*.warc.gz")`; each page is a document.

    Requests, metadata and revisit records are no pages. A page is named by its WARC-Record-ID; the
    shards have its address and the date.
    """

    PACKAGES: ClassVar[tuple[str, ...]] = ("resiliparse", "fastwarc", "charset-normalizer")
    content: Literal["main", "all"] = field(default="main", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_content(self.content)

    def read_file(self, file: SourceFile) -> Iterator[RawDocument]:
        """Yields the pages; an archive that ends in the middle gives one document more."""
        number = 0
        try:
            for record in _records(file.path):
                number += 1
                if (document := self._document(record, number)) is not None:
                    yield document
        except (EOFError, ValueError, OSError):
            yield RawDocument(key=f"after record {number}", reason=TRUNCATED)

    def _document(self, record: Any, number: int) -> RawDocument | None:
        """Returns the document of a response or of extracted text; None for other records."""
        headers = record.headers
        kind = (headers.get("WARC-Type") or "").lower()
        if kind not in ("response", "conversion"):
            return None
        key = (headers.get("WARC-Record-ID") or "").strip("<>").removeprefix("urn:uuid:")
        document = RawDocument(key=key or f"record {number}")
        names = {"url": "WARC-Target-URI", "date": "WARC-Date"}
        fields = {name: headers.get(header) or "" for name, header in names.items()}
        if kind == "response":
            reason = _response_reason(record)
            if reason:
                return replace(document, reason=reason)
        expected_bytes = 0 if _is_encoded(record) else record.content_length
        data = record.reader.read(MAX_PAGE_BYTES + 1)
        if len(data) > MAX_PAGE_BYTES:
            return replace(document, reason=TOO_LARGE)
        if len(data) < expected_bytes:
            return replace(document, reason=TRUNCATED)
        if kind == "conversion":
            decoded = decode_bytes(data)
            counts = {f"encoding: {decoded.encoding}": 1}
            return replace(document, text=decoded.text, counts=counts, fields=fields)
        page = page_document(
            document.key, data, record.http_charset or "", main_content=self.content == "main"
        )
        return replace(page, fields=fields)


def _records(path: str) -> Iterator[Any]:
    try:
        from fastwarc.warc import ArchiveIterator, WarcRecordType
    except ImportError:
        raise MissingExtraError(f"{path}: WARC files need fastwarc", "curate") from None
    kinds = WarcRecordType.response | WarcRecordType.conversion
    # Detects gzip, Zstandard and LZ4 from the first bytes.
    yield from ArchiveIterator(
        path, record_types=kinds, parse_http=True, auto_decode="all", fsspec_args=False
    )


def _is_encoded(record: Any) -> bool:
    """Returns whether the bytes of the body are fewer or more than the record states."""
    headers = record.http_headers
    names = ("Content-Encoding", "Transfer-Encoding")
    return headers is not None and any(headers.get(name) for name in names)


def _response_reason(record: Any) -> str:
    if record.http_headers is None:
        # The headers of the last record may be cut off; a response of DNS has a body.
        return NOT_HTML if record.reader.read(1) else TRUNCATED
    if record.http_headers.status_code != 200:
        return HTTP_ERROR
    identified = record.headers.get("WARC-Identified-Payload-Type") or record.http_content_type
    if not identified and not record.reader.read(1):
        return TRUNCATED
    return "" if (identified or "").lower() in _HTML_TYPES else NOT_HTML
