"""Trains and applies an n-gram model, whose perplexity is a signal of how usual a text is.

Interpolated Kneser-Ney smoothing (Kneser and Ney 1995; Chen and Goodman 1999, section 2.7). With
c_N(g) the count of an n-gram of the highest order N, and c_n(g) for n < N the number of different
words that precede g, the probability of the word w after the words h is

  p_n(w | h) = max(c_n(h w) - D_n, 0) / c_n(h *) + D_n * types_n(h) / c_n(h *) * p_{n-1}(w | h')

where c_n(h *) is the sum over all words, types_n(h) the number of different words after h, h' is h
without its first word, and D_n = n_1 / (n_1 + 2 n_2) from the numbers of n-grams with c_n = 1 and 2
(0.75 if one of them is 0). p_0 = 1 / (V + 1) for the V words of the reference and one unknown word.
After words that the reference does not have in this order, p_n = p_{n-1}. The first words of a
document have fewer words before them, and no mark of its beginning or end is counted.

An n-gram is known by a 64-bit hash; for 10^8 n-grams, two are equal with a probability of 0.0003.
"""

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.apps.curate.classifier import load_arrays, save_arrays
from bert_jax.apps.curate.near_duplicates import WordHashes, shingle_hashes
from bert_jax.errors import UserError, check_range

KIND, COMMAND = "n-gram model", "curate-ngrams"
MAX_ORDER = 5
_HELD_OUT = 10  # one document of so many is not counted; its perplexity gives the percentiles
_MIN_HELD_OUT = 20  # documents
_DEFAULT_DISCOUNT = 0.75
_MAX_BUFFERED = 1 << 23
_UINT64 = np.uint64


@dataclass(frozen=True, kw_only=True)
class Level:
    """Holds the n-grams of one order, and the n - 1 words before their last one.

    Attributes:
      keys: hashes of the n-grams, ascending, uint64 [K].
      log_probabilities: natural logarithms of p_n, float32 [K].
      contexts: hashes of the words before the last, ascending, uint64 [H]; 0 for order 1.
      log_backoffs: logarithms of the factor of p_{n-1}, float32 [H].
    """

    keys: np.ndarray
    log_probabilities: np.ndarray
    contexts: np.ndarray
    log_backoffs: np.ndarray


class NgramModel:
    """Gives the probability of each word of a text.

    Attributes:
      levels: the n-grams of orders 1 to N.
      info: "order", "words" (of the reference), "vocabulary", "documents", and "percentiles": the
        perplexity of held-out documents of the reference at 0, 1, ..., 100 percent.
    """

    def __init__(self, levels: Sequence[Level], info: dict[str, Any]):
        self.levels, self.info = tuple(levels), info

    def log_probabilities(self, words: np.ndarray) -> np.ndarray:
        """Returns the natural logarithm of the probability of each word, float64 [W].

        Args:
          words: hashes of the words of a text, uint64 [W].
        """
        result = np.full(len(words), -np.log(self.info["vocabulary"] + 1))
        for n, level in enumerate(self.levels[: len(words)], start=1):
            contexts, keys = _contexts(words, n), shingle_hashes(words, n)
            index, is_known = _find(level.contexts, contexts)
            values = result[n - 1 :] + np.where(is_known, level.log_backoffs[index], 0.0)
            index, is_known = _find(level.keys, keys)
            result[n - 1 :] = np.where(is_known, level.log_probabilities[index], values)
        return result

    def perplexity(self, text: str) -> float:
        """Returns exp(-mean log-probability of a word), with 6 digits; 0 without words."""
        return self.perplexity_of_words(_word_hashes.hash_words(text))

    def perplexity_of_words(self, words: np.ndarray) -> float:
        """Returns the same for hashes of the words of a text, uint64 [W]."""
        if not len(words):
            return 0.0
        # Sums of floats differ in the last bits between processors.
        return float(f"{np.exp(-self.log_probabilities(words).mean()):.6g}")

    def percentile(self, perplexity: float) -> float:
        """Returns the percentage of held-out documents with a lower perplexity, rounded up.

        100 means more surprising than at least 99 % of the held-out documents of the reference.
        """
        return float(min(100, np.searchsorted(self.info["percentiles"], perplexity)))

    def save(self, path: Path) -> None:
        """Writes the model as one safetensors file."""
        arrays = {
            f"{name}_{n}": getattr(level, name)
            for n, level in enumerate(self.levels, start=1)
            for name in Level.__dataclass_fields__
        }
        save_arrays(path, KIND, arrays, self.info)

    @classmethod
    def load(cls, path: str | Path) -> "NgramModel":
        """Reads a model.

        Raises:
          UserError: there is no such file, or it is no n-gram model.
        """
        arrays, info = load_arrays(path, KIND, COMMAND)
        names = Level.__dataclass_fields__
        levels = [
            Level(**{name: arrays[f"{name}_{n}"] for name in names})
            for n in range(1, info["order"] + 1)
        ]
        return cls(levels, info)


@functools.lru_cache(maxsize=4)
def load_ngrams(path: str) -> NgramModel:
    """Reads a model once for each process."""
    return NgramModel.load(path)


def train_ngrams(texts: Iterable[str], order: int = 3) -> NgramModel:
    """Trains an n-gram model on a reference corpus.

    Memory: about 100 bytes for each different n-gram.
    A tenth of the documents, chosen by hash, is not counted, and gives the percentiles.

    Raises:
      ConfigError: the order is not from 2 to 5.
      UserError: there are too few documents.
    """
    check_range("--order", order, at_least=2, at_most=MAX_ORDER)
    counters = [_Counter(n) for n in range(1, order + 1)]
    held_out: list[np.ndarray] = []
    num_documents = 0
    for text in texts:
        words = _word_hashes.hash_words(text)
        if not len(words):
            continue
        data = text.encode("utf-8", "surrogatepass")
        if hashlib.blake2b(data, digest_size=4).digest()[0] % _HELD_OUT == 0:
            held_out.append(words)
            continue
        num_documents += 1
        for counter in counters:
            counter.add(words)
    tables = [counter.merged() for counter in counters]
    if len(held_out) < _MIN_HELD_OUT or not tables[-1].size:
        raise UserError(
            f"--reference: {num_documents} documents to count and {len(held_out)} held out (about "
            f"one of {_HELD_OUT}); expected at least {_MIN_HELD_OUT} held out, so some hundreds of "
            f"documents, of more than {order} words each"
        )
    vocabulary = tables[0].shape[1]
    info = {
        "order": order,
        "documents": num_documents,
        "words": int(tables[0][3].sum()),
        "vocabulary": vocabulary,
    }
    model = NgramModel(_smooth(tables, vocabulary), info)
    values = [model.perplexity_of_words(words) for words in held_out]
    quantiles = np.quantile(values, np.linspace(0, 1, 101), method="lower")
    info |= {"held_out_documents": len(held_out), "percentiles": quantiles.tolist()}
    return model


_word_hashes = WordHashes()


class _Counter:
    """Counts n-grams as rows of uint64 [4, K]: hash, first n - 1 words, last n - 1 words, count."""

    def __init__(self, n: int):
        self._n = n
        self._blocks: list[np.ndarray] = [np.zeros((4, 0), _UINT64)]
        self._num_buffered, self._limit = 0, _MAX_BUFFERED

    def add(self, words: np.ndarray) -> None:
        """Counts the n-grams of a document."""
        keys = shingle_hashes(words, self._n)
        if not len(keys):
            return
        block = np.ones((4, len(keys)), _UINT64)
        block[0], block[1] = keys, _contexts(words, self._n)
        block[2] = shingle_hashes(words, self._n - 1)[1:] if self._n > 1 else 0
        self._blocks.append(block)
        self._num_buffered += len(keys)
        if self._num_buffered > self._limit:
            self._blocks = [self.merged()]
            # Doubling keeps the number of merges small if most n-grams are different.
            self._num_buffered = self._blocks[0].shape[1]
            self._limit = max(_MAX_BUFFERED, 2 * self._num_buffered)

    def merged(self) -> np.ndarray:
        """Returns the rows of all n-grams, sorted by hash, each once.

        Row 0 has the hashes of the n-grams, rows 1 and 2 the hashes of their first and
        their last n - 1 words, and row 3 the counts.
        """
        rows = np.concatenate(self._blocks, axis=1)
        rows = rows[:, np.argsort(rows[0], kind="stable")]
        is_first = np.ones(rows.shape[1], bool)
        is_first[1:] = rows[0][1:] != rows[0][:-1]
        first = np.flatnonzero(is_first)
        merged = rows[:, first]
        if len(first):
            merged[3] = np.add.reduceat(rows[3], first)
        return merged


def _smooth(tables: Sequence[np.ndarray], vocabulary: int) -> list[Level]:
    """Returns the probabilities of the n-grams of each order, lowest first."""
    levels: list[Level] = []
    lower_keys, lower = np.zeros(1, _UINT64), np.full(1, 1 / (vocabulary + 1))
    for n, table in enumerate(tables, start=1):
        keys, prefixes, suffixes, counts = table
        if n < len(tables):
            # The suffixes of the next order, with the number of words before each.
            preceded, counts = np.unique(tables[n][2], return_counts=True)
            index, _ = _find(keys, preceded)
            keys, prefixes, suffixes = preceded, prefixes[index], suffixes[index]
        discount = _discount(counts)
        contexts, inverse = np.unique(prefixes, return_inverse=True)
        totals = np.bincount(inverse, weights=counts)
        backoffs = discount * np.bincount(inverse) / totals
        index, _ = _find(lower_keys, suffixes)
        probabilities = (counts - discount) / totals[inverse] + backoffs[inverse] * lower[index]
        levels.append(
            Level(
                keys=keys,
                log_probabilities=np.log(probabilities).astype(np.float32),
                contexts=contexts,
                log_backoffs=np.log(backoffs).astype(np.float32),
            )
        )
        lower_keys, lower = keys, probabilities
    return levels


def _discount(counts: np.ndarray) -> float:
    ones, twos = int((counts == 1).sum()), int((counts == 2).sum())
    return ones / (ones + 2 * twos) if ones and twos else _DEFAULT_DISCOUNT


def _contexts(words: np.ndarray, n: int) -> np.ndarray:
    """Returns the hashes of the n - 1 words before the last of each n-gram; 0 for n = 1."""
    return shingle_hashes(words, n - 1)[:-1] if n > 1 else np.zeros(len(words), _UINT64)


def _find(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns an index into sorted keys for each wanted one, and whether it is there."""
    index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return index, keys[index] == wanted
