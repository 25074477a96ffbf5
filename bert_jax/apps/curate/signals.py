"""Computes the signals of a document: numbers that the rules of `plan.py` compare with limits.

A signal is a pure function of the text. The text of a document never changes when limits change,
so signals and limits are apart, and a report can show what other limits would drop.

A token is a run of letters and digits, the end of a contraction ("'s"), an ellipsis, or one other
mark; a word is a token with a letter or a digit. A line is what newlines separate, a paragraph what
blank lines separate. No two published implementations of Gopher's rules agree, so every docstring
below is a formula with its denominator.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np

from bert_jax.text.sentences import get_sentence_splitter

_TOKEN = re.compile(r"\w+|(?<=\w)['’]\w+|\.\.\.|[^\w\s]")
_PARAGRAPHS = re.compile(r"\n\s*\n")
_ELLIPSES = ("...", "…")
_BULLETS = ("•", "-")
# Rae et al. 2021, appendix A.1.1; matched in lower case here.
STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})
# A line ends a sentence with one of these, also in scripts without a full stop.
_TERMINAL = tuple(".!?\"'”’»…。！？।؟։")
SHORT_LINE_CHARACTERS = 30
"""A line of at most this many characters is short (FineWeb)."""

TOP_NGRAMS = (2, 3, 4)
DUPLICATE_NGRAMS = (5, 6, 7, 8, 9, 10)


class TextView:
    """Splits a text into tokens, words, lines and paragraphs, each when it is first needed."""

    def __init__(self, text: str):
        self.text = text

    @cached_property
    def tokens(self) -> list[str]:
        """Returns words and punctuation marks in order."""
        return _TOKEN.findall(self.text)

    @cached_property
    def words(self) -> list[str]:
        """Returns the tokens that have a letter or a digit."""
        # Most tokens are runs of letters and digits, which one call finds.
        return [t for t in self.tokens if t.isalnum() or any(map(str.isalnum, t))]

    @cached_property
    def lines(self) -> list[str]:
        """Returns the lines that are not blank, without white space at their ends."""
        return [line for each in self.text.split("\n") if (line := each.strip())]

    @cached_property
    def paragraphs(self) -> list[str]:
        """Returns the paragraphs that are not blank."""
        return [part for each in _PARAGRAPHS.split(self.text) if (part := each.strip())]

    @cached_property
    def token_ids(self) -> np.ndarray:
        """Returns a number for each token, int64; equal tokens have equal numbers."""
        numbers: dict[str, int] = {}
        return np.fromiter(
            (numbers.setdefault(token, len(numbers)) for token in self.tokens),
            np.int64,
            len(self.tokens),
        )

    @cached_property
    def token_lengths(self) -> np.ndarray:
        """Returns the number of characters of each token, int64."""
        return np.fromiter(map(len, self.tokens), np.int64, len(self.tokens))

    def ngram_ids(self, n: int) -> np.ndarray:
        """Returns a number for each n-gram of tokens, int64; equal n-grams have equal numbers."""
        if n not in self._ngram_ids:
            if n == 1:
                self._ngram_ids[1] = self.token_ids
            else:
                self._ngram_ids[n] = self._extend(self.ngram_ids(n - 1), self.token_ids[n - 1 :])
        return self._ngram_ids[n]

    def _extend(self, ids: np.ndarray, last_tokens: np.ndarray) -> np.ndarray:
        """Returns the numbers of n-grams from the numbers of (n-1)-grams and the last tokens.

        An n-gram can occur twice only if both of its (n-1)-grams do, so only these are sorted.
        """
        is_repeated = np.bincount(ids)[ids] > 1
        candidates = np.flatnonzero(is_repeated[:-1] & is_repeated[1:])
        # Numbers are smaller than twice the number of tokens.
        extended = len(self.tokens) + np.arange(len(last_tokens))
        pairs = ids[candidates] * (len(self.tokens) + 1) + last_tokens[candidates]
        extended[candidates] = np.unique(pairs, return_inverse=True)[1]
        return extended

    @cached_property
    def _ngram_ids(self) -> dict[int, np.ndarray]:
        return {}


def _fraction(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _duplicates(parts: Sequence[str]) -> tuple[int, int]:
    """Returns the number of parts that occurred before, and the number of their characters."""
    seen: set[str] = set()
    count = characters = 0
    for part in parts:
        if part in seen:
            count, characters = count + 1, characters + len(part)
        seen.add(part)
    return count, characters


def words(view: TextView) -> float:
    """Returns the number of words."""
    return len(view.words)


def mean_word_length(view: TextView) -> float:
    """Returns the characters of all words / words."""
    return _fraction(sum(map(len, view.words)), len(view.words))


def hashes_per_token(view: TextView) -> float:
    """Returns the number of "#" / tokens."""
    return _fraction(view.text.count("#"), len(view.tokens))


def ellipses_per_token(view: TextView) -> float:
    """Returns the number of "..." and "…" / tokens."""
    return _fraction(sum(map(view.text.count, _ELLIPSES)), len(view.tokens))


def bullet_lines(view: TextView) -> float:
    """Returns the lines that begin with "•" or "-" / lines."""
    return _fraction(sum(line.startswith(_BULLETS) for line in view.lines), len(view.lines))


def ellipsis_lines(view: TextView) -> float:
    """Returns the lines that end with "..." or "…" / lines."""
    return _fraction(sum(line.endswith(_ELLIPSES) for line in view.lines), len(view.lines))


def tokens_with_letter(view: TextView) -> float:
    """Returns the tokens with a letter / tokens."""
    found = sum(t.isalpha() or any(map(str.isalpha, t)) for t in view.tokens)
    return _fraction(found, len(view.tokens))


def stop_words(view: TextView) -> float:
    """Returns how many of the eight `STOP_WORDS` of English occur, in any case."""
    return len(STOP_WORDS & {word.lower() for word in view.words})


def duplicate_lines(view: TextView) -> float:
    """Returns the lines that are equal to an earlier line / lines."""
    return _fraction(_duplicates(view.lines)[0], len(view.lines))


def duplicate_line_characters(view: TextView) -> float:
    """Returns the characters of lines that are equal to an earlier line / characters of lines."""
    return _fraction(_duplicates(view.lines)[1], sum(map(len, view.lines)))


def duplicate_paragraphs(view: TextView) -> float:
    """Returns the paragraphs that are equal to an earlier paragraph / paragraphs."""
    return _fraction(_duplicates(view.paragraphs)[0], len(view.paragraphs))


def duplicate_paragraph_characters(view: TextView) -> float:
    """Returns the characters of paragraphs equal to an earlier one / characters of the text."""
    return _fraction(_duplicates(view.paragraphs)[1], len(view.text))


def top_ngram_characters(view: TextView, n: int) -> float:
    """Returns the characters of the n-gram that occurs most often x its count / characters.

    An n-gram has a space between two tokens. Of several that occur equally often, the longest
    counts; an n-gram that occurs once is not repeated and gives 0.
    """
    if len(view.tokens) < n:
        return 0.0
    ids, lengths = view.ngram_ids(n), _ngram_lengths(view, n) + n - 1
    counts = np.bincount(ids)
    count = counts.max()
    if count < 2:
        return 0.0
    return _fraction(float(lengths[counts[ids] == count].max() * count), len(view.text))


def duplicate_ngram_characters(view: TextView, n: int) -> float:
    """Returns the characters of tokens in repeated n-grams / characters of the text.

    The text is read from the beginning. An n-gram that occurred before counts, and reading goes on
    behind it, so that no token counts twice; the first occurrence does not count.
    """
    if len(view.tokens) < n:
        return 0.0
    ids = view.ngram_ids(n)
    repeated = np.flatnonzero(np.bincount(ids)[ids] > 1)
    if not len(repeated):
        return 0.0
    lengths, seen, total, end = _ngram_lengths(view, n), set[int](), 0, 0
    for index, number in zip(repeated.tolist(), ids[repeated].tolist(), strict=True):
        if index < end:
            continue
        if number in seen:
            total += int(lengths[index])
            end = index + n
        else:
            seen.add(number)
    return _fraction(total, len(view.text))


def _ngram_lengths(view: TextView, n: int) -> np.ndarray:
    """Returns the number of characters of each n-gram, without spaces."""
    ends = np.concatenate(([0], np.cumsum(view.token_lengths)))
    return ends[n:] - ends[:-n]


def lines_ending_a_sentence(view: TextView) -> float:
    """Returns the lines that end with terminal punctuation or a quotation mark / lines."""
    return _fraction(sum(line.endswith(_TERMINAL) for line in view.lines), len(view.lines))


def short_lines(view: TextView) -> float:
    """Returns the lines of at most 30 characters / lines."""
    found = sum(len(line) <= SHORT_LINE_CHARACTERS for line in view.lines)
    return _fraction(found, len(view.lines))


def newlines_per_token(view: TextView) -> float:
    """Returns the number of newlines / tokens."""
    return _fraction(view.text.count("\n"), len(view.tokens))


def sentences(view: TextView) -> float:
    """Returns the number of sentences by the rules of `text/sentences.py`.

    Sentence pairs (BERT's and ALBERT's second objective) need documents of at least two.
    """
    return len(get_sentence_splitter("rules").split(view.text))


def replacement_characters(view: TextView) -> float:
    """Returns the number of U+FFFD, which stand for bytes that are not text / characters."""
    return _fraction(view.text.count("\ufffd"), len(view.text))


SIGNALS: dict[str, Callable[[TextView], float]] = {
    function.__name__: function
    for function in (
        words,
        mean_word_length,
        hashes_per_token,
        ellipses_per_token,
        bullet_lines,
        ellipsis_lines,
        tokens_with_letter,
        stop_words,
        duplicate_lines,
        duplicate_line_characters,
        duplicate_paragraphs,
        duplicate_paragraph_characters,
        lines_ending_a_sentence,
        short_lines,
        newlines_per_token,
        replacement_characters,
        sentences,
    )
} | {
    **{f"top_{n}gram_characters": partial(top_ngram_characters, n=n) for n in TOP_NGRAMS},
    **{
        f"duplicate_{n}gram_characters": partial(duplicate_ngram_characters, n=n)
        for n in DUPLICATE_NGRAMS
    },
}
"""The functions by the names that rules use."""
