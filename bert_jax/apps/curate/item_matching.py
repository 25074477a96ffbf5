"""Finds evaluation items in documents by the n-grams that both contain.

A text of 13 words and more has all its 13-grams in the index, a shorter text itself as one n-gram.
A text of fewer than 8 words is found only as a whole sentence of the document.

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np

from bert_jax.data.corpus.contamination.items import Item, Words, ngram_keys, word_keys

NGRAM_WORDS = 13
MIN_WORDS = 8
_FILTER_BITS_PER_KEY = 32


class _KeySet:
    """Looks up which n-grams of a document are in a sorted array."""

    def __init__(self, keys: np.ndarray, offset: int):
        """Holds unique keys, uint64; key i has the number `offset` + i."""
        self.keys, self.offset = keys, offset
        # One entry for the lowest bits of each key rules out nearly all words without a search.
        size = 1 << max(10, (len(keys) * _FILTER_BITS_PER_KEY - 1).bit_length())
        self._mask = np.uint64(size - 1)
        self._filter = np.zeros(size, np.bool_)
        self._filter[keys & self._mask] = True

    def find(self, grams: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the positions of the n-grams that are keys, and the numbers of these keys."""
        positions = np.flatnonzero(self._filter[grams & self._mask])
        candidates = grams[positions]
        indices = np.minimum(np.searchsorted(self.keys, candidates), len(self.keys) - 1)
        found = self.keys[indices] == candidates
        return positions[found], indices[found] + self.offset


class ContaminationIndex:
    """Holds the n-grams of the texts of evaluation items.

    Equal texts of several items are one text. Texts and n-grams have numbers from 0.

    Attributes:
      items: the items.
      num_words: int64 [texts], the length of each text in words.
      fields: text -> the (item, index in `Item.texts`) that have it.
      num_ngrams: the number of different n-grams.
    """

    def __init__(self, items: Sequence[Item]):
        self.items = tuple(items)
        self.fields: list[list[tuple[int, int]]] = []
        self._text_of_field: dict[tuple[int, int], int] = {}
        keys_of_texts = self._number_texts()
        self.num_words = np.array([len(keys) for keys in keys_of_texts], np.int64)
        self._sets: dict[int, _KeySet] = {}
        numbers, texts = self._number_ngrams(keys_of_texts)
        self.num_ngrams = sum(len(each.keys) for each in self._sets.values())
        order = np.argsort(numbers, kind="stable")
        self._texts, self._first_text = texts[order], _starts(numbers, self.num_ngrams)
        order = np.argsort(texts, kind="stable")
        self._ngrams, self._first_ngram = numbers[order], _starts(texts, len(keys_of_texts))

    def _number_texts(self) -> list[np.ndarray]:
        """Returns the keys of the words of each different text; fills `fields`."""
        texts: dict[bytes, int] = {}
        keys_of_texts: list[np.ndarray] = []
        # SQuAD repeats a context for each of its questions.
        numbers: dict[str, int | None] = {}
        for i, item in enumerate(self.items):
            for f, field in enumerate(item.texts):
                if field.role == "answer":
                    continue
                if field.text not in numbers:
                    keys = word_keys(field.text)
                    number = texts.setdefault(keys.tobytes(), len(texts)) if len(keys) else None
                    if number == len(keys_of_texts):
                        keys_of_texts.append(keys)
                        self.fields.append([])
                    numbers[field.text] = number
                number = numbers[field.text]
                if number is not None:
                    self.fields[number].append((i, f))
                    self._text_of_field[i, f] = number
        return keys_of_texts

    def _number_ngrams(self, keys_of_texts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Makes the sets of keys; returns n-grams and the texts that have them, int64 pairs."""
        all_keys = np.concatenate([*keys_of_texts, np.zeros(0, np.uint64)])
        ends = np.cumsum(self.num_words)
        text_of_word = np.repeat(np.arange(len(ends)), self.num_words)
        size_of_word = np.minimum(self.num_words, NGRAM_WORDS)[text_of_word]
        remaining_words = ends[text_of_word] - np.arange(len(all_keys))
        pairs: list[tuple[np.ndarray, np.ndarray]] = [
            (np.zeros(0, np.int64), np.zeros(0, np.int64))
        ]
        for n, grams in ngram_keys(all_keys, NGRAM_WORDS):
            # A text of n words (of at least NGRAM_WORDS, for the last n) has n-grams inside it.
            positions = np.flatnonzero((size_of_word == n) & (remaining_words >= n))
            if not len(positions):
                continue
            keys, inverse = np.unique(grams[positions], return_inverse=True)
            offset = sum(len(each.keys) for each in self._sets.values())
            self._sets[n] = _KeySet(keys, offset)
            numbers = inverse + offset
            texts = text_of_word[positions]
            # An n-gram that a text repeats counts once.
            order = np.lexsort((numbers, texts))
            numbers, texts = numbers[order], texts[order]
            is_first = np.ones(len(order), np.bool_)
            is_first[1:] = (np.diff(numbers) != 0) | (np.diff(texts) != 0)
            pairs.append((numbers[is_first], texts[is_first]))
        return np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])

    def find_ngrams(self, words: Words) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Returns n -> (positions, numbers of the n-grams that occur there)."""
        found = {}
        for n, grams in ngram_keys(words.keys, NGRAM_WORDS):
            if n not in self._sets:
                continue
            if n < MIN_WORDS:
                is_sentence = words.boundaries[: len(grams)] & words.boundaries[n:]
                starts = np.flatnonzero(is_sentence)
                positions, numbers = self._sets[n].find(grams[starts])
                positions = starts[positions]
            else:
                positions, numbers = self._sets[n].find(grams)
            if len(positions):
                found[n] = positions, numbers
        return found

    def text_of_field(self, item: int, field: int) -> int | None:
        """Returns the number of a text; None for answers and texts without words."""
        return self._text_of_field.get((item, field))

    def texts_with(self, ngram: int) -> list[int]:
        """Returns the texts that have an n-gram."""
        return self._texts[self._first_text[ngram] : self._first_text[ngram + 1]].tolist()

    def ngrams_of(self, text: int) -> np.ndarray:
        """Returns the numbers of the different n-grams of a text."""
        return self._ngrams[self._first_ngram[text] : self._first_ngram[text + 1]]


def count_documents(index: ContaminationIndex, documents: Iterable[Words]) -> np.ndarray:
    """Counts the documents in which each n-gram occurs, int64 [num_ngrams]."""
    counts = np.zeros(index.num_ngrams, np.int64)
    for words in documents:
        numbers = [numbers for _, numbers in index.find_ngrams(words).values()]
        if numbers:
            counts[np.unique(np.concatenate(numbers))] += 1
    return counts


# A test copied into many documents is a common phrase by its n-grams; items without other n-grams
# are therefore reported as not searched instead of clean.
def common_ngrams(
    documents: np.ndarray, sources: np.ndarray, num_documents: int, num_sources: int, limit: int
) -> np.ndarray:
    """Returns bool [num_ngrams]: which n-grams are common phrases, which are ignored.

    Args:
      documents: int64 [num_ngrams], the number of documents with each n-gram.
      sources: int64 [num_ngrams], the number of sources with each n-gram.
      limit: `Decontamination.max_documents`.
    """
    limit_of_small_corpus = max(3, -(-num_documents // 20))
    return (documents >= min(limit, limit_of_small_corpus)) & (sources >= min(3, num_sources))


def _starts(numbers: np.ndarray, size: int) -> np.ndarray:
    """Returns where each number begins in a sorted array of numbers below `size`, [size + 1]."""
    return np.concatenate(([0], np.cumsum(np.bincount(numbers, minlength=size))))


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


# Counted on the side of the item, half of its n-grams within twice its length, so that neither a
# long document nor line breaks dilute a match, unlike fractions of paragraphs.
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
