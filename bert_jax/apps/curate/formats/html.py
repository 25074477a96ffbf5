"""Reads the main content of HTML pages, with resiliparse, and extracts it for other formats."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from bert_jax.apps.curate.formats.decoding import decode_bytes
from bert_jax.apps.curate.formats.patterns import TOO_LARGE, FilePatterns, read_limited
from bert_jax.data.corpus.source_files import SourceFile
from bert_jax.data.corpus.sources import RawDocument
from bert_jax.errors import ConfigError, MissingExtraError

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
