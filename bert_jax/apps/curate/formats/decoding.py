"""Converts bytes of an unknown encoding to text, and repairs text that was decoded wrongly.

The order is a careful browser's: a byte-order mark, valid UTF-8, the declared encoding, a
guess, and Windows-1252, which every byte can be read with.
"""

import codecs
import re
from dataclasses import dataclass

from bert_jax.errors import MissingExtraError

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
