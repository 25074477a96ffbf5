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

CONTINUING_SUBWORD_PREFIX = "##"


def train_wordpiece_vocab(
    word_counts: Mapping[str, int],
    *,
    vocab_size: int,
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
    words, counts, letters = _split_into_letters(word_counts, alphabet)
    if len(letters) > vocab_size:
        raise UserError(
            f"the vocabulary is too small: the corpus alone has {len(letters)} letters (within and "
            f"at the start of words) for {vocab_size} tokens. Use a larger --vocab-size."
        )
    merger = _Merger(words, counts, letters)
    while len(merger.tokens) < vocab_size and merger.merge(min_frequency):
        if len(merger.tokens) % 100 == 0:
            progress(len(merger.tokens))
    progress(len(merger.tokens))
    return merger.tokens


def _alphabet(word_counts: Mapping[str, int], coverage: float) -> set[str]:
    """The most frequent characters that make up `coverage` of all occurrences."""
    counts: Counter[str] = Counter()
    for word, count in word_counts.items():
        for character in word:
            counts[character] += count
    target_count = coverage * counts.total()
    selected: set[str] = set()
    covered = 0
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= target_count:
            break
        selected.add(character)
        covered += count
    return selected


def _split_into_letters(
    word_counts: Mapping[str, int], alphabet: set[str]
) -> tuple[list[list[int]], list[int], list[str]]:
    """(words as ids of letters, their counts, the letters); in an order that is always the same."""
    selected = sorted(word for word in word_counts if alphabet.issuperset(word))
    letter_tokens = {word[0] for word in selected}
    letter_tokens.update(
        CONTINUING_SUBWORD_PREFIX + character for word in selected for character in word[1:]
    )
    # Plain letters and digits may stand anywhere in text to come.
    for character in alphabet:
        if character.isascii() and character.isalnum():
            letter_tokens.update((character, CONTINUING_SUBWORD_PREFIX + character))
    letters = sorted(letter_tokens, key=lambda letter: (len(letter), letter))
    ids = {letter: i for i, letter in enumerate(letters)}
    words = [
        [ids[word[0]], *(ids[CONTINUING_SUBWORD_PREFIX + c] for c in word[1:])] for word in selected
    ]
    return words, [word_counts[word] for word in selected], letters


class _Merger:
    """Words as lists of pieces, the counts of neighbours, and a heap of the most frequent ones."""

    def __init__(self, words: list[list[int]], counts: list[int], letters: list[str]):
        self.tokens = list(letters)
        self._token_ids = {token: i for i, token in enumerate(letters)}
        self._words, self._counts = words, counts
        self._pair_counts: defaultdict[tuple[int, int], int] = defaultdict(int)
        # Which words hold a pair; may name words that have lost it since, and a word twice.
        self._words_with_pair: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for n, word in enumerate(words):
            for pair in pairwise(word):
                self._pair_counts[pair] += counts[n]
                self._words_with_pair[pair].append(n)
        self._heap = [(-count, pair) for pair, count in self._pair_counts.items()]
        heapq.heapify(self._heap)

    def merge(self, min_frequency: int) -> bool:
        """Merges the most frequent pair everywhere; False when none occurs often enough."""
        while self._heap:
            count, pair = heapq.heappop(self._heap)
            if self._pair_counts.get(pair) != -count:
                continue  # An old entry: the pair has been counted anew since.
            if -count < min_frequency:
                return False
            self._apply_merge(pair, self._merged_token_id(pair))
            return True
        return False

    def _merged_token_id(self, pair: tuple[int, int]) -> int:
        """The id of the merged piece; the same letters may have been merged another way before."""
        token = self.tokens[pair[0]] + self.tokens[pair[1]].removeprefix(CONTINUING_SUBWORD_PREFIX)
        if token not in self._token_ids:
            self._token_ids[token] = len(self.tokens)
            self.tokens.append(token)
        return self._token_ids[token]

    def _apply_merge(self, pair: tuple[int, int], merged_id: int) -> None:
        changed_pairs: set[tuple[int, int]] = set()
        left, right = pair
        for n in sorted(set(self._words_with_pair.pop(pair))):
            word, count = self._words[n], self._counts[n]
            old_pairs = list(pairwise(word))
            position = 0
            while position < len(word) - 1:
                if word[position] == left and word[position + 1] == right:
                    word[position : position + 2] = [merged_id]
                position += 1
            new_pairs = list(pairwise(word))
            if len(old_pairs) == len(new_pairs):
                continue
            for old in old_pairs:
                self._pair_counts[old] -= count
            for new in new_pairs:
                self._pair_counts[new] += count
                if merged_id in new:
                    self._words_with_pair[new].append(n)
            changed_pairs.update(old_pairs)
            changed_pairs.update(new_pairs)
        self._pair_counts.pop(pair, None)
        changed_pairs.discard(pair)
        for other in changed_pairs:
            if self._pair_counts[other] > 0:
                heapq.heappush(self._heap, (-self._pair_counts[other], other))
            else:
                del self._pair_counts[other]
