"""Drops near-duplicates: MinHash proposes pairs of documents, which are compared exactly.

Broder 1997, "On the resemblance and containment of documents"; bands as in Leskovec, Rajaraman and
Ullman, "Mining of Massive Datasets", section 3.4. A shingle is a sequence of n words. Two texts
whose sets of shingles have Jaccard similarity s have an equal key in at least one of b bands of r
hashes with probability 1 - (1 - s^r)^b.

Banding alone is wrong for many pairs, and a chain of similar pairs joins documents that have
nothing in common. So every proposed pair is compared exactly, and a document is dropped if and only
if it is similar to a better-ranked document that is itself kept. The files of this step, each
sorted, are, in this order: band keys of each work unit; pairs with an equal key; shingle sets of
the documents in pairs; similar pairs; twins.
"""

import re
import unicodedata
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from bert_jax.apps.curate.corpus import (
    Corpus,
    Document,
    document_number,
    documents_of_unit,
    hash_text,
    index_of_document,
)
from bert_jax.apps.curate.exact_duplicates import (
    RUN_ROWS,
    TWIN,
    group_starts,
    iter_chunks,
    key_ranges,
    read_rows,
    write_sorted_rows,
    write_twin_decisions,
)
from bert_jax.apps.curate.workers import Workers
from bert_jax.data.pretraining.rng import splitmix64_array
from bert_jax.errors import ConfigError, check_range, did_you_mean
from bert_jax.io.atomic_io import atomic_path
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
        self[word] = value = hash_text(word)
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
    return splitmix64_array(total)


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
        keys = splitmix64_array(keys + (values + _UINT64(1)) * row_factors[row])
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


# Products with odd constants are enough for MinHash, because each shingle hash is already random; a
# test compares the recall with the formula.
def _odd_constants(count: int, seed: int) -> np.ndarray:
    """Returns `count` odd constants, uint64, the first outputs of SplitMix64 for a seed."""
    steps = np.arange(1, count + 1, dtype=_UINT64) * _UINT64(0x9E3779B97F4A7C15)
    return splitmix64_array(steps + _UINT64(seed << 32)) | _UINT64(1)


MAX_OPEN_FILES = 128
"""Each open file is a file descriptor, of which a process has about 1,000."""

_ENTRY = np.dtype([("document", "<u8"), ("end", "<u8")])


def write_shingles(path: Path, sets: Iterable[tuple[int, np.ndarray]]) -> None:
    """Writes shingle sets to `<path>.sets`, and then their documents and ends to `path`.

    Args:
      sets: (number of the document, hashes uint64 [S]), by ascending numbers.
    """
    entries: list[tuple[int, int]] = []
    end = 0
    with atomic_path(path.with_suffix(".sets")) as tmp_path, tmp_path.open("wb") as file:
        for document, shingles in sets:
            shingles.tofile(file)
            end += len(shingles)
            entries.append((document, end))
    with atomic_path(path) as tmp_path, tmp_path.open("wb") as file:
        np.array(entries, _ENTRY).tofile(file)


class ShingleFiles:
    """Reads the shingle sets of documents from the files of all work units.

    A file is mapped into memory when it is used, and the operating system loads what is read. The
    files that were used last stay open.
    """

    def __init__(self, paths: Sequence[Path]):
        self._paths = paths
        self._files = OrderedDict[int, tuple[np.ndarray, np.ndarray]]()

    def read(self, document: int) -> np.ndarray:
        """Returns the shingles of a document, uint64 [S]."""
        entries, shingles = self._open(document >> 32)
        position = int(np.searchsorted(entries["document"], np.uint64(document)))
        assert entries["document"][position] == document
        begin = int(entries["end"][position - 1]) if position else 0
        # A copy, because a part of the map would hold its file open.
        return np.array(shingles[begin : int(entries["end"][position])])

    def _open(self, unit: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the entries and the shingles of a work unit; closes the file unused longest."""
        if unit not in self._files:
            if len(self._files) >= MAX_OPEN_FILES:
                self._files.popitem(last=False)
            path = self._paths[unit]
            entries = np.fromfile(path, _ENTRY)
            self._files[unit] = entries, np.memmap(path.with_suffix(".sets"), "<u8", "r")
        self._files.move_to_end(unit)
        return self._files[unit]


MAX_COMPARED = 64
"""Each document of a bucket is compared with this many of the bucket's best-ranked documents."""

_MAX_CHARACTERS = 2**48 - 1
_RANK = [("rank", "<u8"), ("id_hash", "<u8")]
_BAND = np.dtype([("key", "<u8"), *_RANK, ("document", "<u8")])
_PAIR = np.dtype([("document", "<u8"), ("better", "<u8"), *_RANK])
_NUMBER = np.dtype([("document", "<u8")])
_EDGE = np.dtype([*_RANK, ("document", "<u8"), ("negative_similarity", "<f8"), ("better", "<u8")])


# Datatrove and SlimPajama drop what shares a band and keep one document of each connected
# component; a chain of similar pages then removes pages that are not similar. Here every dropped
# document has a twin in the ledger with the measured similarity.
@dataclass(frozen=True, kw_only=True)
class NearDuplicates:
    """Drops documents whose shingles are nearly the same as a kept document's.

    Of two similar documents, the one is kept whose source is earlier, else the longer one, else the
    one whose id has the smaller hash.

    Attributes:
      threshold: smallest Jaccard similarity of the sets of shingles of a dropped document and the
        kept document that is its twin in the ledger.
      ngram: words in a shingle. Documents with fewer words are not compared.
      bands, rows: a pair of similarity s is compared with probability 1 - (1 - s^rows)^bands; with
        the defaults, FineWeb's, 92 % at 0.8 and 99 % at 0.85.
      ignored_sources: names of sources whose documents are not compared.
    """

    threshold: float = 0.8
    ngram: int = 5
    bands: int = 14
    rows: int = 8
    ignored_sources: tuple[str, ...] = ()

    REASON: ClassVar[str] = "near duplicate"

    def __post_init__(self) -> None:
        check_range("threshold", self.threshold, above=0, at_most=1)
        for name in ("ngram", "bands", "rows"):
            check_range(name, getattr(self, name), at_least=1)

    def check_sources(self, names: Sequence[str]) -> None:
        """Raises a ConfigError if a source that is ignored does not exist."""
        for name in self.ignored_sources:
            if name not in names:
                hint = did_you_mean(name, names) or f"expected one of {', '.join(names)}"
                raise ConfigError(f"ignored_sources: there is no source {name!r}; {hint}")

    def decide(self, corpus: Corpus, workers: Workers) -> None:
        """Writes the decisions about each work unit."""
        write_units, what = partial(corpus.write_units, workers), "near duplicates"
        bands = write_units("bands", _write_bands, self, description=f"{what}: MinHash")
        ranges = key_ranges(bands, _BAND)
        pairs = corpus.write_key_ranges(
            workers, "pairs", _write_pairs, ranges, bands, description=f"{what}: find pairs"
        )
        write_units("shingles", _write_shingles, self, pairs, description=f"{what}: read pairs")
        edges = write_units(
            "edges", _write_edges, pairs, self.threshold, description=f"{what}: compare"
        )
        twins = corpus.path("twins", 0)
        workers.write_files(_write_twins, {twins: (edges,)}, description=f"{what}: choose")
        write_units(
            "decisions", write_twin_decisions, [twins], self.REASON, description=f"{what}: decide"
        )


def _write_bands(path: Path, corpus: Corpus, unit: int, config: NearDuplicates) -> None:
    """Writes the band keys of the documents of a work unit, each with the document's rank."""

    def chunks() -> Iterator[np.ndarray]:
        if corpus.sources[unit] in config.ignored_sources:
            return
        hashes = WordHashes()
        for document in corpus.documents(unit):
            shingles = shingle_hashes(hashes.hash_words(document.text), config.ngram)
            if not len(shingles):
                continue
            rows = np.empty(config.bands, _BAND)
            rows["key"] = band_keys(shingles, config.bands, config.rows)
            rows["rank"] = _rank(corpus.priorities[unit], document)
            rows["id_hash"] = hash_text(document.id)
            rows["document"] = document_number(unit, document.index)
            yield rows

    write_sorted_rows(path, _BAND, chunks())


def _rank(priority: int, document: Document) -> int:
    """Returns the rank of a document: of two similar ones, the one of the smaller rank is kept."""
    return priority << 48 | (_MAX_CHARACTERS - len(document.text))


def _numbers_path(pairs: Path) -> Path:
    """Returns the path of the numbers of all documents that are in a file of pairs."""
    return pairs.with_suffix(".documents")


def _write_pairs(path: Path, bands: list[Path], first: int, last: int) -> None:
    """Writes the pairs of documents with an equal key in a range of keys.

    The pairs are sorted by the number of the document that ranks lower.
    """
    rows = read_rows(bands, _BAND, first, last)
    starts = group_starts(rows["key"])
    position = np.arange(len(rows)) - starts
    widest = int(position.max(initial=0))

    def pairs() -> Iterator[np.ndarray]:
        # Compares with the first of a bucket, then with the second, ...: the best-ranked ones.
        for offset in range(min(widest, MAX_COMPARED)):
            for lower in iter_chunks(np.flatnonzero(position > offset)):
                found = np.empty(len(lower), _PAIR)
                found["better"] = rows["document"][starts[lower] + offset]
                for name in ("document", "rank", "id_hash"):
                    found[name] = rows[name][lower]
                yield found

    is_lower = position > 0
    in_pairs = is_lower.copy()
    in_pairs[:-1] |= is_lower[1:]
    write_sorted_rows(_numbers_path(path), _NUMBER, [rows["document"][in_pairs].astype(_NUMBER)])
    write_sorted_rows(path, _PAIR, pairs())


def _write_shingles(
    path: Path, corpus: Corpus, unit: int, config: NearDuplicates, pairs: list[Path]
) -> None:
    """Writes the shingle sets of the documents of a work unit that are in pairs."""
    numbers = map(_numbers_path, pairs)
    wanted = read_rows(numbers, _NUMBER, *documents_of_unit(unit))["document"]
    wanted_indices = set(map(index_of_document, np.unique(wanted).tolist()))

    def sets() -> Iterator[tuple[int, np.ndarray]]:
        hashes = WordHashes()
        for document in corpus.documents(unit) if wanted_indices else ():
            if document.index in wanted_indices:
                words = hashes.hash_words(document.text)
                yield document_number(unit, document.index), shingle_set(words, config.ngram)

    write_shingles(path, sets())


def _write_edges(
    path: Path, corpus: Corpus, unit: int, pairs: list[Path], threshold: float
) -> None:
    """Writes the pairs that are similar, of those whose lower-ranked document is in a work unit.

    The rows are sorted by the rank of that document, then by similarity, the largest first.
    """
    rows = read_rows(pairs, _PAIR, *documents_of_unit(unit))
    proposed = rows[group_starts(rows) == np.arange(len(rows))]  # several bands find one pair
    files = ShingleFiles([corpus.path("shingles", k) for k in range(corpus.num_units)])

    def edges() -> Iterator[np.ndarray]:
        for start in range(0, len(proposed), RUN_ROWS):
            chunk = proposed[start : start + RUN_ROWS]
            similarities = np.empty(len(chunk))
            # By the file of the better document, so that each file is opened once for a chunk.
            for k in np.argsort(chunk["better"]).tolist():
                first, second = (files.read(int(chunk[name][k])) for name in ("document", "better"))
                similarities[k] = jaccard(first, second, threshold)
            similar = similarities >= threshold
            found = np.empty(np.count_nonzero(similar), _EDGE)
            for name in ("rank", "id_hash", "document", "better"):
                found[name] = chunk[name][similar]
            found["negative_similarity"] = -similarities[similar]
            yield found

    write_sorted_rows(path, _EDGE, edges())


def _write_twins(path: Path, edges: list[Path]) -> None:
    """Writes the documents to drop, each with the most similar document that is kept.

    Goes from the best rank to the worst: when a document's turn comes, every better-ranked one is
    already decided. This needs about 100 bytes for each similar pair.
    """
    rows = read_rows(edges, _EDGE)
    both = np.concatenate((rows["document"], rows["better"]))
    names, numbers = np.unique(both, return_inverse=True)
    dropped = bytearray(len(names))
    chosen: list[int] = []
    pairs = zip(numbers[: len(rows)].tolist(), numbers[len(rows) :].tolist(), strict=True)
    for i, (document, better) in enumerate(pairs):
        if not dropped[document] and not dropped[better]:
            dropped[document] = 1
            chosen.append(i)
    twins = np.empty(len(chosen), TWIN)
    twins["document"] = rows["document"][chosen]
    twins["twin"] = rows["better"][chosen]
    twins["similarity"] = -rows["negative_similarity"][chosen]
    write_sorted_rows(path, TWIN, [twins])
