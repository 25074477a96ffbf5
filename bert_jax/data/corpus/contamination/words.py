"""Splits a text into words that are compared by 64-bit keys, and makes the keys of n-grams.

A word is a run of letters and digits with their marks, or one Chinese, Japanese or Thai character,
since these scripts put no space between words. Case, punctuation, quotation marks, compatible and
invisible characters and line breaks do not matter, also not a line break after a hyphen inside a
word.
"""

import functools
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from bert_jax.text.cleaning import UNSPACED_SCRIPTS, normalize_text

_JOINERS = "\u200c\u200d"


def _mark_ranges() -> str:
    """Returns the ranges of the marks for a character class: accents, vowel signs (Mn, Mc, Me).

    `\\w` of Python's `re` does not contain them, so it splits a Hindi word at each vowel sign.
    """
    unspaced = re.compile(f"[{UNSPACED_SCRIPTS}]")
    ranges: list[list[int]] = []
    # Below U+0300 there are no marks, and those above U+1FFFF are variation selectors.
    for code in range(0x300, 0x20000):
        if unicodedata.category(chr(code))[0] == "M" and not unspaced.match(chr(code)):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


# Marks and the zero-width joiners of Persian and Indic scripts belong to the word before them.
_MARKS = _mark_ranges() + _JOINERS
_ANY_MARK = re.compile(f"[{_MARKS}]")
_LETTERS = rf"[^\W_{UNSPACED_SCRIPTS}]+"
_LETTERS_AND_MARKS = rf"{_LETTERS}(?:[{_MARKS}]+[^\W_{UNSPACED_SCRIPTS}]*)*"
# A word that is broken at the end of a line goes on with a letter that is not a capital.
_BREAK = r"[-\u2010]\n[ \t]*(?=[^\W\d_A-Z])"


def _compile(letters: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Compiles the patterns of words, and of words and marks that may end a sentence."""
    word = rf"[{UNSPACED_SCRIPTS}]|{letters}(?:{_BREAK}{letters})*"
    # Marks that may end a sentence, a cell of a table or a quotation.
    tokens = rf"{word}|[.!?\u2026\u3002\uff01\uff1f\t|\"\u201c\u201d]|\n"
    return re.compile(word), re.compile(tokens)


_WORDS, _TOKENS = _compile(_LETTERS_AND_MARKS)
_WORDS_WITHOUT_MARKS, _TOKENS_WITHOUT_MARKS = _compile(_LETTERS)  # much faster
_NO_PART_OF_KEYS = re.compile(rf"{_BREAK}|[{_JOINERS}]")

# Keys of tokens that are no words; a hash of 64 bits has these values in 1 of 10^19 words.
_MARK, _NEWLINE = 0, 1
_MAX_CACHED_WORDS = 1 << 20
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def _has_marks(text: str) -> bool:
    return not text.isascii() and _ANY_MARK.search(text) is not None


class _TokenKeys(dict[str, int]):
    """Caches the key of each token, which depends on the token only."""

    def __missing__(self, token: str) -> int:
        if len(self) >= _MAX_CACHED_WORDS:
            self.clear()
        self[token] = key = _token_key(token)
        return key


def _token_key(token: str) -> int:
    if token == "\n":
        return _NEWLINE
    if not token[0].isalnum() and not _WORDS.match(token):
        return _MARK
    folded = unicodedata.normalize("NFKC", _NO_PART_OF_KEYS.sub("", token)).casefold()
    data = unicodedata.normalize("NFKC", folded).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


_token_keys = _TokenKeys()


@dataclass(frozen=True, eq=False)
class Words:
    """Holds the words of a text.

    Attributes:
      text: the text after `normalize_text`, to which `span` refers.
      keys: uint64 [N], equal for equal words.
      boundaries: bool [N + 1], whether a sentence may begin before word i (or end, for N).
      lines: int32 [N], the number of the line in which each word begins.
    """

    text: str
    keys: np.ndarray
    boundaries: np.ndarray
    lines: np.ndarray

    @classmethod
    def of(cls, text: str) -> "Words":
        """Splits a text."""
        text = normalize_text(text)
        tokens = (_TOKENS if _has_marks(text) else _TOKENS_WITHOUT_MARKS).findall(text)
        keys = np.fromiter(map(_token_keys.__getitem__, tokens), np.uint64, len(tokens))
        is_word = keys > _NEWLINE
        # The number of words before each mark is the position of a boundary.
        num_words = np.cumsum(is_word)
        total = int(num_words[-1]) if len(tokens) else 0
        boundaries = np.zeros(total + 1, np.bool_)
        boundaries[num_words[~is_word]] = True
        boundaries[[0, total]] = True
        lines = np.cumsum(keys == _NEWLINE, dtype=np.int32)[is_word]
        return cls(text, keys[is_word], boundaries, lines)

    @functools.cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Returns the first character of each word and the one behind its last."""
        pattern = _WORDS if _has_marks(self.text) else _WORDS_WITHOUT_MARKS
        return [match.span() for match in pattern.finditer(self.text)]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Returns the characters of the words from `start` up to `end`, which is excluded."""
        return self.spans[start][0], self.spans[end - 1][1]


def word_keys(text: str) -> np.ndarray:
    """Returns the keys of the words of a text, uint64 [N], as `Words.of(text).keys`, but faster."""
    text = normalize_text(text)
    words = (_WORDS if _has_marks(text) else _WORDS_WITHOUT_MARKS).findall(text)
    return np.fromiter(map(_token_keys.__getitem__, words), np.uint64, len(words))


def ngram_keys(keys: np.ndarray, max_n: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (n, keys of the n-grams, uint64 [N - n + 1]) for n = 1 to `max_n`."""
    grams = keys
    for n in range(1, min(max_n, len(keys)) + 1):
        if n > 1:
            grams = grams[:-1] * _MULTIPLIER + keys[n - 1 :]
        yield n, grams


def digest(texts: Iterable[str]) -> int:
    """Returns 63 bits that identify a list of texts by their words."""
    content = hashlib.blake2b(digest_size=8)
    for text in texts:
        keys = word_keys(text)
        content.update(len(keys).to_bytes(8, "little") + keys.astype("<u8").tobytes())
    return int.from_bytes(content.digest(), "little") >> 1
