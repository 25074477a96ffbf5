"""Reads raw files: patterns that name them, unknown encodings, Parquet, Project Gutenberg.

Each kind is a subclass with the method `read_file`, which yields the documents of one file. A
document that cannot be read is yielded with a reason, so that the ledger has it.

Encodings are tried in a careful browser's order: a byte-order mark, valid UTF-8, the declared
encoding, a guess, and Windows-1252, which every byte can be read with.
"""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast
from xml.etree.ElementTree import Element, XMLPullParser

from bert_jax.data.corpus.source_files import SourceFile, find_source_files
from bert_jax.data.corpus.sources import Patterns, RawDocument
from bert_jax.errors import ConfigError, MissingExtraError, UserError, did_you_mean
from bert_jax.text.files import DamagedFileError, read_chunks

DAMAGED, TOO_LARGE = "damaged file", "too large"
"""Reasons for dropping a whole file."""


@dataclass(frozen=True)
class FilePatterns:
    """Names files by one or more glob patterns.

    `PACKAGES` names the libraries that the text depends on; other versions make another corpus.
    """

    PACKAGES: ClassVar[tuple[str, ...]] = ()
    patterns: Patterns  # one or more glob patterns

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


_BYTE_ORDER_MARKS = (
    # UTF-32 first: its little-endian mark begins with the mark of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# What browsers read under these names (WHATWG Encoding Standard, section 4.2): supersets.
_SUPERSETS = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
    "tis-620": "cp874",
}
# Python knows codecs that are no encodings of text, such as "punycode" and "unicode_escape".
_TEXT_CODECS = ("utf-", "cp", "iso", "koi8", "gb", "big5", "euc", "shift", "mac", "tis", "hz")
_SAMPLE_BYTES = 1 << 15
# A guess from a few accents is wrong more often than Windows-1252.
_MIN_GUESS_BYTES = 16
_MOJIBAKE = re.compile("[ÃÂÐÑ][\x80-¿]|â€|â‚¬|ã€|ï»¿|[\x80-\x84\x86-\x9f]")


@dataclass(frozen=True, slots=True)
class DecodedText:
    """Holds text and the name of the encoding that it was decoded with."""

    text: str
    encoding: str


def decode_bytes(data: bytes, declared: str = "") -> DecodedText:
    """Decodes bytes; never raises. Bytes that no encoding fits become U+FFFD.

    Args:
      declared: what HTTP, HTML or XML name as the encoding; "" if there is none.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return DecodedText(data.decode(encoding, "replace"), encoding.removesuffix("-sig"))
    codec = text_codec(declared)
    candidates = [] if data.isascii() and codec else ["utf-8"]
    candidates += [codec] if codec else []
    if zeros := _utf16_without_mark(data):
        candidates.insert(0, zeros)
    for encoding in candidates:
        try:
            return DecodedText(data.decode(encoding), encoding)
        except UnicodeDecodeError:
            continue
    encoding = _guess(data) or "cp1252"
    return DecodedText(data.decode(encoding, "replace"), encoding)


def text_codec(declared: str) -> str:
    """Returns Python's name of a declared encoding; "" if it is unknown or no text encoding."""
    try:
        name = codecs.lookup(declared.strip().strip("\"'").replace("\0", "")).name
    except (LookupError, ValueError):
        return ""
    name = _SUPERSETS.get(name, name)
    return name if name.startswith(_TEXT_CODECS) and name != "utf-7" else ""


def repair_mojibake(text: str) -> str:
    """Returns text in which "Ã©" is "é" again; only lines with signs of wrong decoding change.

    Quotation marks, ligatures and the width of characters remain as they are.
    """
    if not _MOJIBAKE.search(text):
        return text
    try:
        import ftfy
    except ImportError:
        raise MissingExtraError("repairing wrongly decoded text needs ftfy", "curate") from None
    lines = text.split("\n")
    return "\n".join(ftfy.fix_encoding(line) if _MOJIBAKE.search(line) else line for line in lines)


def _utf16_without_mark(data: bytes) -> str:
    """Returns the byte order of text that has a zero in nearly every second byte, else ""."""
    sample = data[:2000]
    if len(sample) < 20 or sample.count(0) < len(sample) // 4:
        return ""
    return "utf-16-be" if sample[::2].count(0) > sample[1::2].count(0) else "utf-16-le"


def _guess(data: bytes) -> str:
    """Returns the encoding that charset-normalizer finds; "" for little or unclear data."""
    num_ascii = len(data.translate(None, delete=bytes(range(128, 256))))
    if len(data) - num_ascii < _MIN_GUESS_BYTES:
        return ""
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        raise MissingExtraError("guessing an encoding needs charset-normalizer", "curate") from None
    # The first part may be markup in ASCII: begin where the first other byte is.
    first = next((n for n, byte in enumerate(data) if byte > 127), 0)
    best = from_bytes(data[max(0, first - 100) : first + _SAMPLE_BYTES]).best()
    return text_codec(best.encoding) if best else ""


_BATCH_ROWS = 1024

NOT_UTF8 = "not UTF-8"


@dataclass(frozen=True)
class ParquetFiles(FilePatterns):
    """Names Parquet files: `ParquetFiles("fineweb/*.parquet")`, with the text in a column.

    Other columns are left out.
    """

    column: str = "text"  # of the text

    def read_file(self, file: SourceFile) -> Iterator[RawDocument]:
        """Yields a document for each row; one that is not UTF-8 has that reason.

        Raises:
          UserError: the file cannot be read, or has no such column of text.
        """
        number = 0
        for batch in self._batches(file.path):
            for text in _texts(batch.column(0)):
                number += 1
                reason = NOT_UTF8 if text is None else ""
                yield RawDocument(key=str(number), text=text or "", reason=reason)

    def _batches(self, path: str) -> Iterator[Any]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise MissingExtraError(f"{path}: Parquet files need pyarrow", "curate") from None
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                self._check_column(path, file.schema_arrow, pyarrow.types)
                # A row group at a time: files have groups of up to a gigabyte.
                yield from file.iter_batches(_BATCH_ROWS, columns=[self.column])
        except (OSError, pyarrow.ArrowException) as error:
            raise UserError(f"{path}: not a Parquet file, or damaged ({error})") from None

    def _check_column(self, path: str, schema: Any, types: Any) -> None:
        if self.column not in schema.names:
            hint = did_you_mean(self.column, schema.names)
            raise UserError(
                f"{path}: no column {self.column!r}; {hint}found {', '.join(schema.names)}"
            )
        kind = schema.field(self.column).type
        if not (types.is_string(kind) or types.is_large_string(kind)):
            raise UserError(f"{path}: column {self.column!r} has type {kind}, expected string")


def _texts(column: Any) -> list[str | None]:
    """Returns the texts of a column, "" for null, and None for bytes that are not UTF-8."""
    try:
        return [text or "" for text in column.to_pylist()]
    except UnicodeDecodeError:  # few writers check the bytes of a text column
        return [_text(value) for value in column]


def _text(value: Any) -> str | None:
    try:
        return value.as_py() or ""
    except UnicodeDecodeError:
        return None


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
