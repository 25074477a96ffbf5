"""Trains a WordPiece vocabulary by merging the most frequent pairs (Sennrich et al. 2016).

The trainers of `tokenizers` iterate over hash tables in random order, so that the same corpus gives
another vocabulary in each run. Here the result depends only on the word counts: letters are sorted,
and of equally frequent pairs the one whose tokens were made first is merged.
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
    """Trains the tokens of a vocabulary: letters first, then merges in the order they were made.

    Args:
      word_counts: normalized words, split at punctuation, and how often each occurs.
      vocab_size: number of tokens; there may be fewer if nothing is left to merge.
      min_frequency: pairs that occur less often are not merged.
      character_coverage: fraction of all characters that the letters must cover; words with a
        rarer character are ignored.
      progress: called with the number of tokens after every 100 merges.

    Returns:
      At most `vocab_size` different tokens; those inside a word begin with "##".

    Raises:
      UserError: `vocab_size` is smaller than the number of letters.
    """
    alphabet = _alphabet(word_counts, character_coverage)
    words, counts, letters = _split_into_letters(word_counts, alphabet)
    if len(letters) > vocab_size:
        raise UserError(
            f"--vocab-size is too small: the corpus has {len(letters)} letters (within and at the "
            f"start of words), but there is space for {vocab_size} tokens"
        )
    merger = _Merger(words, counts, letters)
    while len(merger.tokens) < vocab_size and merger.merge(min_frequency):
        if len(merger.tokens) % 100 == 0:
            progress(len(merger.tokens))
    progress(len(merger.tokens))
    return merger.tokens


def _alphabet(word_counts: Mapping[str, int], coverage: float) -> set[str]:
    """Returns the most frequent characters that together make up `coverage` of the text."""
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
    """Returns (words as ids of letters, counts of the words, letters) in a fixed order."""
    selected = sorted(word for word in word_counts if alphabet.issuperset(word))
    letter_tokens = {word[0] for word in selected}
    letter_tokens.update(
        CONTINUING_SUBWORD_PREFIX + character for word in selected for character in word[1:]
    )
    # ASCII letters and digits may occur anywhere in later text.
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
    """Holds words as lists of token ids, counts of adjacent pairs, and a heap of these pairs."""

    def __init__(self, words: list[list[int]], counts: list[int], letters: list[str]):
        self.tokens = list(letters)
        self._token_ids = {token: i for i, token in enumerate(letters)}
        self._words, self._counts = words, counts
        self._pair_counts: defaultdict[tuple[int, int], int] = defaultdict(int)
        # The words that contain a pair; may list a word twice, or one that no longer contains it.
        self._words_with_pair: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for n, word in enumerate(words):
            for pair in pairwise(word):
                self._pair_counts[pair] += counts[n]
                self._words_with_pair[pair].append(n)
        self._heap = [(-count, pair) for pair, count in self._pair_counts.items()]
        heapq.heapify(self._heap)

    def merge(self, min_frequency: int) -> bool:
        """Merges the most frequent pair in all words; False if none occurs often enough."""
        while self._heap:
            count, pair = heapq.heappop(self._heap)
            if self._pair_counts.get(pair) != -count:
                continue  # An outdated entry: the count of the pair has changed since.
            if -count < min_frequency:
                return False
            self._apply_merge(pair, self._merged_token_id(pair))
            return True
        return False

    def _merged_token_id(self, pair: tuple[int, int]) -> int:
        """Returns the id of the merged token, which other pairs may have produced before."""
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
