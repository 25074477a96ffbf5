"""Normalizes the characters of raw text before anything else reads it.

Precomposed characters (NFC) come first, because hashes of the same text must be equal.
"""

import re
import unicodedata

_NEWLINES = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# Controls, soft hyphens, zero-width spaces, marks of direction, byte-order marks, tags, lone
# surrogates. Zero-width joiners (U+200C, U+200D) stay: Persian and Indic scripts need them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u2064\u2066-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
_SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_WHITE_SPACE = re.compile(r"\s+")


def normalize_text(text: str) -> str:
    """Returns text in NFC with "\\n" as newline, without invisible characters.

    Special spaces become U+0020. Words, punctuation and lines do not change.
    """
    text = _INVISIBLE.sub("", _NEWLINES.sub("\n", text))
    return unicodedata.normalize("NFC", _SPACES.sub(" ", text))


def match_key(text: str) -> str:
    """Returns the form in which documents are compared: NFKC, lower case, single spaces."""
    folded = unicodedata.normalize("NFKC", text).lower()
    return _WHITE_SPACE.sub(" ", folded).strip()
