"""Finds texts in a prepared corpus, exactly and with changed words, with an index of n-grams.

As in BLAT (Kent 2002), the index has the n-grams at every n-th token of the corpus, and a query
is looked up at all of its n-grams. So any passage of at least 2n - 1 tokens contains an
indexed n-gram, and the index has only an n-th of all n-grams. For shorter queries, all tokens are
scanned.

    <folder>/tokens.npy       ids of all tokens, in the order of the corpus
             hashes-000.npy   of a block: upper 32 bits of the hashes of its n-grams, sorted
             positions-000.npy   of a block: where these n-grams are in it, divided by n
             index.json       written last: the fingerprint of the corpus and the sizes
"""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.rng import splitmix64_array
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import make_folder, write_json
from bert_jax.io.json_io import read_json_object

logger = logging.getLogger(__name__)

NGRAM = 4
"""Tokens of an n-gram; also the distance between two indexed n-grams."""
MIN_SIMILARITY = 0.8

_FORMAT = "bert_jax passages 1"
_INDEX, _TOKENS = "index.json", "tokens.npy"
# Sorting one block takes about 1.5 GB.
_BLOCK_TOKENS = 1 << 28
# N-grams that are more frequent than this do not help to find a changed text.
_MAX_POSITIONS = 10_000
# At most so many regions are aligned, those that share the most n-grams with the query first.
_MAX_REGIONS = 1_000
_SECONDS_BETWEEN_MESSAGES = 10.0


class Passage(NamedTuple):
    """Names the tokens [begin, end) of a corpus.

    `similarity` is 1 for equal tokens, and else 1 - (edit distance / tokens of the query).
    """

    begin: int
    end: int
    similarity: float


class PassageIndex:
    """Finds passages in one corpus.

    Args:
      folder: the folder of the index; it is made if it does not exist or belongs to other text.

    Raises:
      UserError: the folder cannot be written, or a file in it is damaged.
    """

    def __init__(self, corpus: PreparedCorpus, folder: Path) -> None:
        self._corpus = corpus
        fingerprint = corpus.manifest.fingerprint
        if not _is_index_of(folder, fingerprint):
            _build(corpus, folder)
        try:
            self._tokens = np.load(folder / _TOKENS, mmap_mode="r", allow_pickle=False)
            self._blocks = [
                tuple(
                    np.load(_block_file(folder, name, block), mmap_mode="r", allow_pickle=False)
                    for name in ("hashes", "positions")
                )
                for block in range(_num_blocks(len(self._tokens)))
            ]
        except (OSError, ValueError) as error:
            raise UserError(
                f"{folder}: the index cannot be read ({error}); remove the folder, and run the "
                "same command again"
            ) from None
        self._document_starts = np.append(
            corpus.part_starts[corpus.first_part[:-1]], len(self._tokens)
        )

    @property
    def num_bytes(self) -> int:
        """Returns the size of the index on disk."""
        return self._tokens.nbytes + sum(a.nbytes for block in self._blocks for a in block)

    def find_exact(self, query: np.ndarray) -> list[Passage]:
        """Returns all passages with exactly the ids [m] of the query, in order."""
        is_long = len(query) >= 2 * NGRAM - 1
        starts = self._candidates(query) if is_long else self._scan(query)
        length = len(query)
        starts = starts[starts + length <= len(self._tokens)]
        for offset in range(length):
            starts = starts[self._tokens[starts + offset] == query[offset]]
        ends = self._document_starts[self.documents_of(starts) + 1]
        starts = starts[starts + length <= ends]
        return [Passage(start, start + length, 1.0) for start in starts.tolist()]

    def find_similar(self, query: np.ndarray, min_similarity: float) -> list[Passage]:
        """Returns passages that differ from the query but have at least this similarity, in order.

        A passage is missed if none of its indexed n-grams is in the query: with one changed token
        in ten, that is rare in texts of 30 tokens or more.
        """
        regions = self._regions(query)
        found: list[Passage] = []
        for begin, end in regions:
            passage = _align(query, np.asarray(self._tokens[begin:end]), begin)
            is_new = not found or all(
                passage.end <= other.begin or passage.begin >= other.end for other in found
            )
            if min_similarity <= passage.similarity < 1 and is_new:
                found.append(passage)
        return sorted(found)

    def documents_of(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the documents [n] that contain tokens [n] of the corpus."""
        return np.searchsorted(self._document_starts, tokens, side="right") - 1

    def token_ids(self, passage: Passage) -> list[int]:
        """Returns the ids of the tokens of a passage."""
        return self._tokens[passage.begin : passage.end].tolist()

    def _scan(self, query: np.ndarray) -> np.ndarray:
        """Returns every position of the first token of a query."""
        positions = [
            start + np.flatnonzero(self._tokens[start : start + _BLOCK_TOKENS] == query[0])
            for start in range(0, len(self._tokens), _BLOCK_TOKENS)
        ]
        return np.concatenate(positions)

    def _candidates(self, query: np.ndarray) -> np.ndarray:
        """Returns where a query may begin, ascending: at each alignment by its rarest n-gram."""
        hashes = _ngram_hashes(query)
        found = []
        for block in range(len(self._blocks)):
            bounds = self._bounds(block, hashes)
            for alignment in range(NGRAM):
                offsets = np.arange(alignment, len(hashes), NGRAM)
                rarest = int(offsets[np.argmin((bounds[1] - bounds[0])[offsets])])
                found.append(self._positions(block, bounds, rarest) - rarest)
        starts = np.unique(np.concatenate(found))
        return starts[starts >= 0]

    def _regions(self, query: np.ndarray) -> list[tuple[int, int]]:
        """Returns ranges of tokens with many n-grams of a query, those with the most first."""
        if len(query) < NGRAM:
            return []
        hashes, margin = _ngram_hashes(query), max(NGRAM, len(query) // 4)
        starts, offsets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for block in range(len(self._blocks)):
            bounds = self._bounds(block, hashes)
            for offset in np.flatnonzero(bounds[1] - bounds[0] <= _MAX_POSITIONS).tolist():
                positions = self._positions(block, bounds, offset)
                starts.append(positions - offset)
                offsets.append(np.full(len(positions), offset))
        # One n-gram of the query at one place of the corpus is a vote for where the text begins.
        # Votes in neighboring bins belong together, as tokens may be missing or added.
        bins = np.unique(
            np.stack((np.concatenate(starts) // margin, np.concatenate(offsets))), axis=1
        )
        numbers, votes = np.unique(bins[0], return_counts=True)
        following = np.append(numbers[1:] == numbers[:-1] + 1, False)
        votes = votes + np.where(following, np.append(votes[1:], 0), 0)
        best = np.argsort(-votes, kind="stable")[:_MAX_REGIONS]
        regions = []
        for number in numbers[best].tolist():
            middle = min(max(0, number * margin + len(query) // 2), len(self._tokens) - 1)
            document = int(self.documents_of(np.array([middle]))[0])
            first, end = self._document_starts[document : document + 2].tolist()
            begin, stop = number * margin - margin, (number + 2) * margin + len(query) + margin
            regions.append((max(first, begin), min(end, stop)))
        return regions

    def _bounds(self, block: int, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sorted_hashes, wanted = self._blocks[block][0], _upper_bits(hashes)
        return (
            np.searchsorted(sorted_hashes, wanted, side="left"),
            np.searchsorted(sorted_hashes, wanted, side="right"),
        )

    def _positions(
        self, block: int, bounds: tuple[np.ndarray, np.ndarray], offset: int
    ) -> np.ndarray:
        positions = self._blocks[block][1][bounds[0][offset] : bounds[1][offset]]
        return block * _BLOCK_TOKENS + positions.astype(np.int64) * NGRAM


def _align(query: np.ndarray, tokens: np.ndarray, first: int) -> Passage:
    """Finds the part of `tokens` with the smallest edit distance to the query (Sellers 1980)."""
    end, distance = _best_end(query, tokens)
    length, _ = _best_end(query[::-1], tokens[:end][::-1])
    return Passage(first + end - length, first + end, 1 - distance / len(query))


def _best_end(query: np.ndarray, tokens: np.ndarray) -> tuple[int, int]:
    """Returns the end of the most similar part of `tokens`, and its edit distance to the query."""
    columns = np.arange(len(tokens) + 1)
    row = np.zeros(len(columns), np.int64)  # a part may begin anywhere
    for number, token in enumerate(query.tolist(), start=1):
        changed = np.concatenate(([number], np.minimum(row[1:] + 1, row[:-1] + (tokens != token))))
        # An additional token of `tokens` costs one more than the column before it.
        row = np.minimum.accumulate(changed - columns) + columns
    end = int(row.argmin())
    return end, int(row[end])


def _ngram_hashes(ids: np.ndarray) -> np.ndarray:
    """Returns the hashes of all n-grams of a text of at least n tokens, uint64."""
    return _hash_rows(np.lib.stride_tricks.sliding_window_view(ids, NGRAM))


def _hash_rows(rows: np.ndarray) -> np.ndarray:
    hashes = np.zeros(len(rows), np.uint64)
    for column in range(rows.shape[1]):
        hashes = splitmix64_array(hashes + rows[:, column].astype(np.uint64) + np.uint64(1))
    return hashes


def _upper_bits(hashes: np.ndarray) -> np.ndarray:
    return (hashes >> np.uint64(32)).astype(np.uint32)


def _num_blocks(num_tokens: int) -> int:
    return -(-num_tokens // _BLOCK_TOKENS)


def _block_file(folder: Path, name: str, block: int) -> Path:
    return folder / f"{name}-{block:03d}.npy"


def _is_index_of(folder: Path, fingerprint: str) -> bool:
    if not (folder / _INDEX).is_file():
        return False
    content = read_json_object(folder / _INDEX)
    return content.get("format") == _FORMAT and content.get("corpus") == fingerprint


def _build(corpus: PreparedCorpus, folder: Path) -> None:
    num_tokens = corpus.num_tokens
    make_folder(folder)
    (folder / _INDEX).unlink(missing_ok=True)
    logger.info("%s: indexing %s tokens, once for this corpus", folder, f"{num_tokens:,}")
    first_part = corpus.read(0)
    try:
        tokens = np.lib.format.open_memmap(
            folder / _TOKENS, "w+", first_part.ids.dtype.newbyteorder("="), (num_tokens,)
        )
        for start, ids in _with_progress(corpus, num_tokens):
            tokens[start : start + len(ids)] = ids
        tokens.flush()
        for block in range(_num_blocks(num_tokens)):
            ids = tokens[block * _BLOCK_TOKENS : (block + 1) * _BLOCK_TOKENS]
            rows = ids[: len(ids) // NGRAM * NGRAM].reshape(-1, NGRAM)
            hashes = _upper_bits(_hash_rows(rows))
            order = np.argsort(hashes, kind="stable")
            np.save(_block_file(folder, "hashes", block), hashes[order])
            np.save(_block_file(folder, "positions", block), order.astype(np.uint32))
    except OSError as error:
        raise UserError(
            f"{folder}: the index cannot be written ({error.strerror}); name another folder with "
            "--index"
        ) from None
    write_json(
        folder / _INDEX,
        {"format": _FORMAT, "corpus": corpus.manifest.fingerprint, "tokens": num_tokens},
    )


def _with_progress(corpus: PreparedCorpus, num_tokens: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the start and the ids of each part, and logs progress."""
    started = last_message = time.monotonic()
    for part_index, start in enumerate(corpus.part_starts.tolist()):
        yield start, corpus.read(part_index).ids
        now = time.monotonic()
        if now - last_message > _SECONDS_BETWEEN_MESSAGES:
            last_message = now
            left = (now - started) * (num_tokens - start) / max(start, 1)
            logger.info("%d %% of the tokens, %.0f s left", 100 * start // num_tokens, left)
