"""Decides which evaluation items a document contains, from the n-grams that occur in it.

- A text of 13 words and more is found if at least half of its 13-grams, not counting common
  phrases, occur within a part of the document that is twice as long as the text. Counting is on the
  side of the item, so neither a long document nor other line breaks dilute it.
- A text of 8 to 12 words is found as a whole.
- A shorter text is found if it is a whole sentence of the document and another text of the item is
  within 50 words, or an answer in the same line. Alone it is too common to mean anything.

N-grams that many documents contain are ignored: they are phrases, not quotations of a test.
Paraphrases and translations are not found, as by any rule of n-grams (Yang et al. 2023).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np

from bert_jax.data.corpus.contamination.index import MIN_WORDS, NGRAM_WORDS, ContaminationIndex
from bert_jax.data.corpus.contamination.words import Words, word_keys

MIN_FRACTION = 0.5
NEAR_WORDS = 50


@dataclass(frozen=True, slots=True)
class ItemMatch:
    """Describes where a text of an item was found.

    Attributes:
      item: the index of the item.
      field: the index of the text in `Item.texts`.
      start, end: the first word, and the one behind the last.
      fraction: the part of the n-grams of the text that was found.
    """

    item: int
    field: int
    start: int
    end: int
    fraction: float


@dataclass(frozen=True, slots=True)
class _TextMatch:
    """Describes where a text was found, before it is assigned to items."""

    text: int
    start: int
    end: int
    fraction: float
    is_common: bool = False


def find_items(index: ContaminationIndex, words: Words, common: np.ndarray) -> list[ItemMatch]:
    """Finds evaluation items in a document, in the order of the document.

    Args:
      common: bool [num_ngrams], the n-grams that are ignored.
    """
    matches: list[_TextMatch] = []
    short: list[_TextMatch] = []
    for n, (positions, numbers) in index.find_ngrams(words).items():
        if n == NGRAM_WORDS:
            informative = ~common[numbers]
            hits = zip(positions[informative].tolist(), numbers[informative].tolist(), strict=True)
            matches += _long_matches(index, hits, common)
            continue
        for position, number in zip(positions.tolist(), numbers.tolist(), strict=True):
            is_common = bool(common[number])
            (text,) = index.texts_with(number)
            match = _TextMatch(text, position, position + n, 1.0, is_common)
            if n < MIN_WORDS:
                short.append(match)
            elif not is_common:
                matches.append(match)
    found = {
        ItemMatch(item, field, each.start, each.end, each.fraction)
        for each in matches
        for item, field in index.fields[each.text]
    }
    found.update(_short_matches(index, words, short, matches))
    return sorted(found, key=lambda each: (each.start, each.end, each.item, each.field))


def is_matchable(index: ContaminationIndex, text: int, common: np.ndarray) -> bool:
    """Returns whether at least half of the n-grams of a text are no common phrases."""
    ngrams = index.ngrams_of(text)
    return 2 * int((~common[ngrams]).sum()) >= len(ngrams)


def _long_matches(
    index: ContaminationIndex, hits: Iterator[tuple[int, int]], common: np.ndarray
) -> Iterator[_TextMatch]:
    """Yields the texts of which enough 13-grams occur close together.

    Args:
      hits: (position, number of the n-gram).
    """
    triples = sorted(
        (text, position, number) for position, number in hits for text in index.texts_with(number)
    )
    for text, group in groupby(triples, key=itemgetter(0)):
        if not is_matchable(index, text, common):
            continue
        num_informative = int((~common[index.ngrams_of(text)]).sum())
        hits_of_text = [(position, number) for _, position, number in group]
        window = 2 * int(index.num_words[text]) - NGRAM_WORDS
        min_count = MIN_FRACTION * num_informative
        for start, last, count in _dense_spans(hits_of_text, window, min_count):
            yield _TextMatch(text, start, last + NGRAM_WORDS, count / num_informative)


def _short_matches(
    index: ContaminationIndex,
    words: Words,
    short: Sequence[_TextMatch],
    matches: Sequence[_TextMatch],
) -> Iterator[ItemMatch]:
    """Yields the short texts next to which another text or an answer of their item is."""
    by_field: dict[tuple[int, int], list[_TextMatch]] = {}
    for match in (*short, *matches):
        for item_and_field in index.fields[match.text]:
            by_field.setdefault(item_and_field, []).append(match)
    for match in short:
        for item, field in index.fields[match.text]:
            others = (
                other
                for f in range(len(index.items[item].texts))
                if f != field
                for other in by_field.get((item, f), ())
            )
            # Two sentences that are common, such as a question and its reply, prove nothing.
            is_near = any(
                _distance(match, other) <= NEAR_WORDS
                for other in others
                if not (match.is_common and other.is_common)
            )
            if is_near or (not match.is_common and _has_answer(index, words, match, item)):
                yield ItemMatch(item, field, match.start, match.end, 1.0)


def _has_answer(index: ContaminationIndex, words: Words, match: _TextMatch, item: int) -> bool:
    """Returns whether an answer of the item is in the line of a match, outside of the match."""
    lines = words.lines[match.start], words.lines[match.end - 1] + 1
    start, end = np.searchsorted(words.lines, lines)
    before, behind = words.keys[start : match.start], words.keys[match.end : end]
    return any(
        _contains(part, word_keys(each.text))
        for each in index.items[item].texts
        if each.role == "answer"
        for part in (before, behind)
    )


def _contains(keys: np.ndarray, part: np.ndarray) -> bool:
    """Returns whether the words of `part`, at least one, follow each other in `keys`."""
    if not 0 < len(part) <= len(keys):
        return False
    windows = np.lib.stride_tricks.sliding_window_view(keys, len(part))
    return bool((windows == part).all(axis=1).any())


def _distance(one: _TextMatch, other: _TextMatch) -> int:
    """Returns the number of words between two matches; more than `NEAR_WORDS` if they overlap."""
    gap = max(one.start, other.start) - min(one.end, other.end)
    return gap if gap >= 0 else NEAR_WORDS + 1


def _dense_spans(
    hits: Sequence[tuple[int, int]], window: int, min_count: float
) -> Iterator[tuple[int, int, int]]:
    """Yields (first position, last position, most different numbers in a window).

    Args:
      hits: (position, number), sorted.
      window: the largest distance between the first and the last hit.
      min_count: different numbers that a window has at least.
    """
    counts, left = Counter[int](), 0
    span: tuple[int, int, int] | None = None
    for position, number in hits:
        counts[number] += 1
        while position - hits[left][0] > window:
            counts[hits[left][1]] -= 1
            if not counts[hits[left][1]]:
                del counts[hits[left][1]]
            left += 1
        if len(counts) < min_count:
            continue
        if span is not None and hits[left][0] <= span[1]:
            span = span[0], position, max(span[2], len(counts))
        else:
            if span is not None:
                yield span
            span = hits[left][0], position, len(counts)
    if span is not None:
        yield span
