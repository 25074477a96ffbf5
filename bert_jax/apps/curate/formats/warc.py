"""Reads the pages of web archives: WARC files of responses, and WET files of extracted text."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from bert_jax.apps.curate.formats.decoding import decode_bytes
from bert_jax.apps.curate.formats.html import MAX_PAGE_BYTES, check_content, page_document
from bert_jax.apps.curate.formats.patterns import TOO_LARGE, FilePatterns
from bert_jax.apps.curate.formats.wikipedia import TRUNCATED
from bert_jax.data.corpus.source_files import SourceFile
from bert_jax.data.corpus.sources import RawDocument
from bert_jax.errors import MissingExtraError, UserError

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
    content: Literal["main", "all"] = field(default="main", kw_only=True)

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
