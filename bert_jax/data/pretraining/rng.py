"""Generates random numbers as a function of (seed, epoch, example), without any state.

The seed of a phase is the seed of the run plus the index of the phase.

SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) is used as a counter-based generator: the 64-bit key
of an example is a hash of (seed, epoch, example), and its n-th random word is the hash of
key + n * gamma. Each use of randomness has its own `Stream` of 2^32 words, so that a new use does
not change the others. `ExampleRng` (plain Python, one word at a time) and `random_bits` (NumPy
arrays) return the same words.
"""

from collections.abc import Callable
from enum import IntEnum

import numpy as np

# SplitMix64's constants: 2^64 divided by the golden ratio, and the multipliers of variant 13 of
# Stafford's finalizers.
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_UINT64_MASK = (1 << 64) - 1


class Stream(IntEnum):
    """Lists the uses of randomness. Changing a number would change the data of every seed."""

    ORDER = 0
    WINDOW_OFFSET = 1
    SHORT_SEQ = 2
    TARGET_SEQ_LENGTH = 3
    SEGMENT_SPLIT = 4
    RANDOM_NEXT = 5
    RANDOM_NEXT_SENTENCE = 6
    TRUNCATE = 7
    MASK_SELECTION = 8
    MASK_ACTION = 9
    RANDOM_TOKEN = 10
    SPAN_LENGTH = 11
    SENTENCE_ORDER = 12
    SAMPLING_SEED = 13
    DEMONSTRATIONS = 14
    NOISE_SPAN_LENGTH = 15
    NONNOISE_SPAN_LENGTH = 16
    PREFIX_LENGTH = 17
    SENTENCE_CHOICE = 18
    SENTENCE_PERMUTATION = 19
    INSERTION = 20
    ROTATION = 21
    MASKING_RATE = 22
    IS_CAUSAL = 23


def splitmix64(x: int) -> int:
    """Hashes a 64-bit number with SplitMix64's finalizer, which is a bijection."""
    x = ((x ^ (x >> 30)) * _MULTIPLIER_1) & _UINT64_MASK
    x = ((x ^ (x >> 27)) * _MULTIPLIER_2) & _UINT64_MASK
    return x ^ (x >> 31)


def splitmix64_array(x: np.ndarray) -> np.ndarray:
    """Applies `splitmix64` to each element of a uint64 array with at least one dimension."""
    # Arrays wrap around silently at 2^64. NumPy scalars would warn, hence "at least one dimension".
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MULTIPLIER_1)
    x ^= x >> np.uint64(27)
    x *= np.uint64(_MULTIPLIER_2)
    x ^= x >> np.uint64(31)
    return x


def epoch_key(seed: int, epoch: int) -> int:
    """Returns the 64-bit key of one epoch."""
    return splitmix64(
        (splitmix64((seed * _GAMMA + 1) & _UINT64_MASK) + (epoch + 1) * _GAMMA) & _UINT64_MASK
    )


def example_keys(epoch_keys: np.ndarray, example_indices: np.ndarray) -> np.ndarray:
    """Returns the keys [n] uint64 of examples [n], given the keys [n] uint64 of their epochs."""
    return splitmix64_array(
        epoch_keys + (example_indices.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)
    )


def random_bits(keys: np.ndarray, stream: Stream, index: np.ndarray) -> np.ndarray:
    """Returns the random uint64 words `index` of a stream; keys (uint64) and index broadcast."""
    # A stream has 2^32 words, so an index must stay below 2^32 or it would read the next stream.
    counter = index.astype(np.uint64) + np.uint64(stream << 32)
    return splitmix64_array(keys + counter * np.uint64(_GAMMA))


def evenly_spread(seed: int, stream: Stream, index: np.ndarray) -> np.ndarray:
    """Returns numbers in [0, 1) of which any n consecutive ones are about 1 / n apart.

    They are u + i / golden ratio modulo 1 for indices i [n], a sequence of low discrepancy, with u
    uniform over the seeds.

    Returns:
      [n] float64.
    """
    key = np.array([epoch_key(seed, 0)], np.uint64)
    start = random_bits(key, stream, np.zeros(1, np.int64))
    # Integers modulo 2^64 keep all bits however large the index is.
    return ((start + index.astype(np.uint64) * np.uint64(_GAMMA)) >> np.uint64(11)) * 2.0**-53


def scale_bits(bits: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Scales random uint64 words [n] to integers below bounds [n], as `ExampleRng.randint`.

    Each bound must be below 2^32.
    """
    # The upper half of a product of 128 bits, which NumPy does not have.
    half, bounds = np.uint64(32), bounds.astype(np.uint64)
    low = (bits & np.uint64(0xFFFFFFFF)) * bounds
    return (((bits >> half) * bounds + (low >> half)) >> half).astype(np.int64)


class ExampleRng:
    """Draws the random numbers of one example one at a time."""

    __slots__ = ("key",)

    def __init__(self, key: int) -> None:
        self.key = key

    def bits(self, stream: Stream, index: int = 0) -> int:
        """Draws an integer uniform in [0, 2^64)."""
        return splitmix64((self.key + ((stream << 32) + index) * _GAMMA) & _UINT64_MASK)

    def uniform(self, stream: Stream, index: int = 0) -> float:
        """Draws a float uniform in [0, 1) with 53 random bits."""
        return (self.bits(stream, index) >> 11) * 2.0**-53

    def randint(self, bound: int, stream: Stream, index: int = 0) -> int:
        """Draws an integer uniform in [0, bound)."""
        # Python integers do not overflow, so the high part of the product is uniform to one part in
        # 2^64 / bound, without a loop that rejects values.
        return (self.bits(stream, index) * bound) >> 64

    def bits_array(self, n: int, stream: Stream, start: int = 0) -> np.ndarray:
        """Draws [n] uint64 integers: `bits` for the indices start, start + 1, ..."""
        return random_bits(np.array([self.key], np.uint64), stream, np.arange(start, start + n))

    def uniforms(self, n: int, stream: Stream, start: int = 0) -> np.ndarray:
        """Draws [n] float64 uniform in [0, 1): `uniform` for the indices start, start + 1, ..."""
        return (self.bits_array(n, stream, start) >> np.uint64(11)) * 2.0**-53

    def permutation(self, n: int, stream: Stream) -> np.ndarray:
        """Draws a random permutation of 0 .. n - 1, [n] int64."""
        # Stable, so that even equal words give the same order on every platform.
        return np.argsort(self.bits_array(n, stream), kind="stable")


def permute(indices: np.ndarray, size: int, key: int) -> np.ndarray:
    """Applies a pseudo-random permutation of [0, size) to indices [n] int64, without a table.

    It is a Feistel network over the smallest power of two of at least `size`, which is applied
    again until the result is below `size` (cycle walking; Black and Rogaway, CT-RSA 2002).
    """
    return _walk_cycles(indices, size, key, _feistel)


def unpermute(indices: np.ndarray, size: int, key: int) -> np.ndarray:
    """Applies the inverse of `permute` to indices [n] int64."""
    return _walk_cycles(indices, size, key, _inverse_feistel)


_Network = Callable[[np.ndarray, np.ndarray, np.uint64, np.uint64, np.ndarray], None]


def _walk_cycles(indices: np.ndarray, size: int, key: int, network: _Network) -> np.ndarray:
    # A Feistel network needs at least one bit in each half.
    bits = max(2, (size - 1).bit_length())
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    keys = np.array([key], np.uint64)
    result = np.array(indices, dtype=np.uint64, ndmin=1)
    out_of_range = np.ones(result.shape, dtype=bool)
    while out_of_range.any():
        x = result[out_of_range]
        left, right = x >> low_bits, x & low_mask
        network(left, right, high_mask, low_mask, keys)
        result[out_of_range] = (left << low_bits) | right
        out_of_range = result >= np.uint64(size)
    return result.astype(np.int64)


# Eight rounds on two unequal halves, in place. Few cycles are walked, because the domain is less
# than twice the size.
_ROUNDS = range(0, 8, 2)


def _feistel(
    left: np.ndarray, right: np.ndarray, high_mask: np.uint64, low_mask: np.uint64, keys: np.ndarray
) -> None:
    for index in _ROUNDS:
        left ^= random_bits(keys, Stream.ORDER, right | _round(index)) & high_mask
        right ^= random_bits(keys, Stream.ORDER, left | _round(index + 1)) & low_mask


def _inverse_feistel(
    left: np.ndarray, right: np.ndarray, high_mask: np.uint64, low_mask: np.uint64, keys: np.ndarray
) -> None:
    for index in reversed(_ROUNDS):
        right ^= random_bits(keys, Stream.ORDER, left | _round(index + 1)) & low_mask
        left ^= random_bits(keys, Stream.ORDER, right | _round(index)) & high_mask


def _round(round_index: int) -> np.uint64:
    # Above the halves of any corpus, and beyond the words of the last stream.
    return np.uint64(round_index << 40)
