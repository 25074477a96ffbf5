"""Learns WordPiece pieces by merging the most frequent neighbours (Sennrich et al. 2016).

Ours because the trainers of `tokenizers` walk hash tables in random order, so that the same corpus
gives another vocabulary at each run. Here ties go to the pair whose pieces were made first, and the
letters are sorted: the result depends on the word counts alone.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise

from bert_jax.errors import UserError

CONTINUATION = "##"


def learn_pieces(
    word_counts: Mapping[str, int],
    *,
    size: int,
    min_frequency: int,
    character_coverage: float,
    progress: Callable[[int], object] = lambda done: None,
) -> list[str]:
    """The pieces of a vocabulary, letters first, then merges in the order in which they were made.

    Args:
      word_counts: words as WordPiece will see them (normalised, split at punctuation) and how often
        each occurs.
      size: number of pieces wanted; fewer come back when nothing is left to merge.
      min_frequency: pairs that occur less often are not merged.
      character_coverage: share of character occurrences that must be spelled; words with a rarer
        character are left aside.
      progress: called with the number of pieces now and then.

    Returns:
      At most `size` different pieces; those inside a word begin with "##".

    Raises:
      UserError: `size` does not even hold the letters.
    """
    alphabet = _alphabet(word_counts, character_coverage)
    words, counts, letters = _spell(word_counts, alphabet)
    if len(letters) > size:
        raise UserError(
            f"the vocabulary is too small: the corpus alone has {len(letters)} letters (within and "
            f"at the start of words) for {size} pieces. Use a larger --size."
        )
    merger = _Merger(words, counts, letters)
    while len(merger.pieces) < size and merger.merge(min_frequency):
        if len(merger.pieces) % 100 == 0:
            progress(len(merger.pieces))
    progress(len(merger.pieces))
    return merger.pieces


def _alphabet(word_counts: Mapping[str, int], coverage: float) -> set[str]:
    """The most frequent characters that make up `coverage` of all occurrences."""
    counts: Counter[str] = Counter()
    for word, count in word_counts.items():
        for character in word:
            counts[character] += count
    wanted = coverage * counts.total()
    kept: set[str] = set()
    covered = 0
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= wanted:
            break
        kept.add(character)
        covered += count
    return kept


def _spell(
    word_counts: Mapping[str, int], alphabet: set[str]
) -> tuple[list[list[int]], list[int], list[str]]:
    """(words as ids of letters, their counts, the letters); in an order that is always the same."""
    kept = sorted(word for word in word_counts if alphabet.issuperset(word))
    seen = {word[0] for word in kept}
    seen.update(CONTINUATION + character for word in kept for character in word[1:])
    # Plain letters and digits may stand anywhere in text to come.
    for character in alphabet:
        if character.isascii() and character.isalnum():
            seen.update((character, CONTINUATION + character))
    letters = sorted(seen, key=lambda letter: (len(letter), letter))
    ids = {letter: i for i, letter in enumerate(letters)}
    words = [[ids[word[0]], *(ids[CONTINUATION + c] for c in word[1:])] for word in kept]
    return words, [word_counts[word] for word in kept], letters


class _Merger:
    """Words as lists of pieces, the counts of neighbours, and a heap of the most frequent ones."""

    def __init__(self, words: list[list[int]], counts: list[int], letters: list[str]):
        self.pieces = list(letters)
        self._known = {piece: i for i, piece in enumerate(letters)}
        self._words, self._counts = words, counts
        self._pairs: defaultdict[tuple[int, int], int] = defaultdict(int)
        # Which words hold a pair; may name words that have lost it since, and a word twice.
        self._places: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for n, word in enumerate(words):
            for pair in pairwise(word):
                self._pairs[pair] += counts[n]
                self._places[pair].append(n)
        self._heap = [(-count, pair) for pair, count in self._pairs.items()]
        heapq.heapify(self._heap)

    def merge(self, min_frequency: int) -> bool:
        """Merges the most frequent pair everywhere; False when none occurs often enough."""
        while self._heap:
            count, pair = heapq.heappop(self._heap)
            if self._pairs.get(pair) != -count:
                continue  # An old entry: the pair has been counted anew since.
            if -count < min_frequency:
                return False
            self._apply(pair, self._piece(pair))
            return True
        return False

    def _piece(self, pair: tuple[int, int]) -> int:
        """The id of the merged piece; the same letters may have been merged another way before."""
        piece = self.pieces[pair[0]] + self.pieces[pair[1]].removeprefix(CONTINUATION)
        if piece not in self._known:
            self._known[piece] = len(self.pieces)
            self.pieces.append(piece)
        return self._known[piece]

    def _apply(self, pair: tuple[int, int], merged: int) -> None:
        changed: set[tuple[int, int]] = set()
        left, right = pair
        for n in sorted(set(self._places.pop(pair))):
            word, count = self._words[n], self._counts[n]
            before = list(pairwise(word))
            position = 0
            while position < len(word) - 1:
                if word[position] == left and word[position + 1] == right:
                    word[position : position + 2] = [merged]
                position += 1
            after = list(pairwise(word))
            if len(before) == len(after):
                continue
            for old in before:
                self._pairs[old] -= count
            for new in after:
                self._pairs[new] += count
                if merged in new:
                    self._places[new].append(n)
            changed.update(before)
            changed.update(after)
        self._pairs.pop(pair, None)
        changed.discard(pair)
        for other in changed:
            if self._pairs[other] > 0:
                heapq.heappush(self._heap, (-self._pairs[other], other))
            else:
                del self._pairs[other]
