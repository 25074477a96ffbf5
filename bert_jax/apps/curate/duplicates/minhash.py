"""Computes shingles, MinHash band keys and the exact Jaccard similarity of texts.

Broder 1997, "On the resemblance and containment of documents"; bands as in Leskovec, Rajaraman and
Ullman, "Mining of Massive Datasets", section 3.4. A shingle is a sequence of n words. Two texts
whose sets of shingles have Jaccard similarity s have an equal key in at least one of b bands of r
hashes with probability 1 - (1 - s^r)^b.
"""

import hashlib
import re
import unicodedata

import numpy as np

from bert_jax.text.cleaning import UNSPACED_SCRIPTS

_CHARACTER_WORD = re.compile(f"[{UNSPACED_SCRIPTS}]")
_WORD = re.compile(f"[{UNSPACED_SCRIPTS}]|[^\\W{UNSPACED_SCRIPTS}]+")
_WORD_WITH_SPACES = re.compile(r"\w+")  # twice as fast, for texts without such characters
_MAX_CACHED_WORDS = 1 << 20
_CHUNK_SHINGLES = 2048
_UINT64 = np.uint64


class WordHashes(dict[str, int]):
    """Hashes words to 64 bits, and remembers frequent words because hashing is slow in Python."""

    def __missing__(self, word: str) -> int:
        data = word.encode("utf-8", "surrogatepass")
        value = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
        self[word] = value
        return value

    def hash_words(self, text: str) -> np.ndarray:
        """Returns the hash of each word of a text, uint64 [W].

        Words are runs of letters, digits and underscores in NFKC and lower case. Digits stay as
        they are: texts that differ in their numbers only, such as census articles, are no
        duplicates.
        """
        if len(self) > _MAX_CACHED_WORDS:
            self.clear()
        text = unicodedata.normalize("NFKC", text).lower()
        has_spaces = text.isascii() or _CHARACTER_WORD.search(text) is None
        words = (_WORD_WITH_SPACES if has_spaces else _WORD).findall(text)
        return np.fromiter(map(self.__getitem__, words), _UINT64, len(words))


# Digits stay in the shingles, which datatrove replaces by 0: pages that differ in their numbers
# only are different pages.
def shingle_hashes(words: np.ndarray, n: int) -> np.ndarray:
    """Returns the hashes of the shingles of `n` words, in order, uint64 [S].

    Args:
      words: hashes of the words, uint64 [W]. If there are fewer than `n`, there is no shingle.
    """
    count = len(words) - n + 1
    if count <= 0:
        return np.zeros(0, _UINT64)
    total = np.zeros(count, _UINT64)
    for i, factor in enumerate(_odd_constants(n, seed=1)):
        total += words[i : i + count] * factor
    return _mix(total)


def shingle_set(words: np.ndarray, n: int) -> np.ndarray:
    """Returns the distinct shingle hashes, ascending; the arguments are as for `shingle_hashes`."""
    return np.unique(shingle_hashes(words, n))


def band_keys(shingles: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """Returns the key of each band, uint64 [bands].

    Args:
      shingles: hashes, uint64 [S], at least one; the order and repetitions do not matter.
    """
    # Order by h * constant modulo 2^32 is a permutation of the hashes, because each is random.
    factors = (_odd_constants(bands * rows, seed=2) >> _UINT64(32)).astype(np.uint32) | np.uint32(1)
    hashes = (shingles >> _UINT64(32)).astype(np.uint32)
    minima = np.full(bands * rows, 2**32 - 1, np.uint32)
    for start in range(0, len(hashes), _CHUNK_SHINGLES):  # what fits into the processor's cache
        products = np.multiply.outer(factors, hashes[start : start + _CHUNK_SHINGLES])
        np.minimum(minima, products.min(axis=1), out=minima)
    keys = np.arange(bands, dtype=_UINT64)
    row_factors = _odd_constants(rows, seed=3)
    for row, values in enumerate(minima.reshape(bands, rows).astype(_UINT64).T):
        keys = _mix(keys + (values + _UINT64(1)) * row_factors[row])
    return keys


def jaccard(first: np.ndarray, second: np.ndarray, at_least: float = 0.0) -> float:
    """Returns the size of the intersection of two ascending sets / the size of their union.

    Args:
      at_least: 0 is returned if the sizes of the sets show that the result is smaller.
    """
    small, large = (first, second) if len(first) <= len(second) else (second, first)
    # The product is rounded: 0.55 * 100 is greater than 55.
    if not len(small) or len(small) < at_least * len(large) - 1e-9:
        return 0.0
    found = np.minimum(np.searchsorted(large, small), len(large) - 1)
    common = int(np.count_nonzero(large[found] == small))
    return common / (len(small) + len(large) - common)


def candidate_probability(similarity: float, bands: int, rows: int) -> float:
    """Returns the probability that two texts of this similarity have an equal band key."""
    return 1 - (1 - similarity**rows) ** bands


# Products with odd constants are enough for MinHash, because each shingle hash is already random; a
# test compares the recall with the formula.
def _odd_constants(count: int, seed: int) -> np.ndarray:
    """Returns `count` odd constants, uint64, the first outputs of SplitMix64 for a seed."""
    steps = np.arange(1, count + 1, dtype=_UINT64) * _UINT64(0x9E3779B97F4A7C15)
    return _mix(steps + _UINT64(seed << 32)) | _UINT64(1)


def _mix(values: np.ndarray) -> np.ndarray:
    """Applies the finalizer of SplitMix64 (Steele et al. 2014), a permutation of 64 bits."""
    values = (values ^ (values >> _UINT64(30))) * _UINT64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> _UINT64(27))) * _UINT64(0x94D049BB133111EB)
    return values ^ (values >> _UINT64(31))
