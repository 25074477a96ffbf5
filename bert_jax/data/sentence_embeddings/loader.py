"""Builds batches of texts for sentence encoders; pairs of labeled texts as SetFit samples them.

A positive pair has two texts of one class, or the same text twice; a negative pair has texts of two
classes. Each unordered pair exists once. The number of pairs grows with the square of the number of
texts, so only the pairs of an epoch are stored: pair k of a kind is computed from k, and a
permutation without a table decides which pairs are taken. The numbers of pairs are those of
`ContrastiveDataset` in setfit 1.2.

Losses with in-batch negatives treat the texts of all other examples as negatives, so a text that
occurs twice in a batch would be a negative of its own example. If texts share rows, or the loss
compares examples, a batch has examples of any length, and the length of its longest text;
otherwise it has examples of similar length. The batches are a function of (seed, epoch): a loader
that starts at a position continues with the same examples on any number of processes. Which texts
share a row depends on that number.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.batch import PACKED_TOKENS
from bert_jax.config.sentence_embeddings import PairSampling
from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.loader import Batch, collate, plan_batches, shuffle_batches
from bert_jax.data.pretraining.rng import epoch_key, permute
from bert_jax.data.sentence_embeddings.packed_rows import packed_tokens, rows_per_part
from bert_jax.errors import UserError


class WordDeletion(NamedTuple):
    """Describes how words of the first text of an example are deleted (TSDAE, Wang et al. 2021).

    Attributes:
      word_starts: bool [V], where a token begins a word.
      ratio: the probability with which a word is deleted.
    """

    word_starts: np.ndarray
    ratio: float

    def apply(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns the int32 ids of a text without the deleted words; one of them always stays.

        Args:
          ids: with a special token at each end.
        """
        starts = self.word_starts[ids[1:-1]]
        if not len(starts):
            return ids
        starts[0] = True
        word_of_token = np.cumsum(starts) - 1
        stays = rng.random(word_of_token[-1] + 1) >= self.ratio
        if not stays.any():
            stays[rng.integers(len(stays))] = True
        return np.concatenate([ids[:1], ids[1:-1][stays[word_of_token]], ids[-1:]])


MAX_PAIRS = 2**24
"""More pairs than this would take too much memory; small training sets need far fewer."""
_POSITIVE, _NEGATIVE = 0, 1


def sample_pairs(
    class_ids: np.ndarray, sampling: PairSampling, *, num_iterations: int | None = None, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Samples the pairs of one epoch.

    A kind of pair of which more are needed than exist is gone through again from its beginning.

    Args:
      class_ids: int [n], the class of each text.
      num_iterations: n times this number of pairs of each kind, instead of `sampling`.
      seed: of the order of the pairs.

    Returns:
      (indices of the texts of each pair, int64 [pairs, 2]; float32 [pairs], 1 for positive pairs).

    Raises:
      UserError: there are fewer than two classes, so there is no negative pair; or more than
        `MAX_PAIRS` pairs would be sampled.
    """
    totals = num_positive, num_negative = count_pairs(class_ids)
    if not num_negative:
        raise UserError(
            "all training examples have the same label; expected at least two classes, because "
            "contrastive tuning needs pairs of different classes"
        )
    if num_iterations is not None:
        sizes = (num_iterations * len(class_ids),) * 2
    elif sampling == "unique":
        sizes = num_positive, num_negative
    else:
        choose = max if sampling == "oversampling" else min
        sizes = (choose(num_positive, num_negative),) * 2
    if sum(sizes) > MAX_PAIRS:
        raise UserError(
            f"contrastive tuning would take {sum(sizes):,} pairs of {len(class_ids):,} training "
            f"examples; expected at most {MAX_PAIRS:,}: set --num-iterations "
            "(ContrastivePairs.num_iterations), such as to 20, or use fewer examples"
        )
    # Oversampling repeats all pairs of a kind before any a third time.
    sampled = [np.arange(size) % total for size, total in zip(sizes, totals, strict=True)]
    positive = permute(sampled[0], num_positive, epoch_key(seed, _POSITIVE))
    negative = permute(sampled[1], num_negative, epoch_key(seed, _NEGATIVE))
    pairs = [positive_pairs(class_ids, positive), negative_pairs(class_ids, negative)]
    scores = np.repeat(np.array([1, 0], np.float32), sizes)
    return np.concatenate(pairs), scores


# A vector belongs to a single text, so the two texts of a pair are joined with a space.
def joined_text(example: TextExample) -> str:
    """Returns the text of an example, or both texts of a pair, joined with a space."""
    return example.text if example.text_pair is None else f"{example.text} {example.text_pair}"


def count_pairs(class_ids: np.ndarray) -> tuple[int, int]:
    """Returns the number of positive and of negative pairs that exist."""
    counts = np.unique(class_ids, return_counts=True)[1].astype(np.int64)
    num_positive = int((counts * (counts + 1) // 2).sum())
    return num_positive, len(class_ids) * (len(class_ids) + 1) // 2 - num_positive


def positive_pairs(class_ids: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns the positive pairs with these numbers, int64 [n, 2].

    They are numbered by class and, within a class of m texts, row by row in the upper triangle of
    an m x m matrix with its diagonal.
    """
    order, starts, counts = _classes(class_ids)
    sizes = counts * (counts + 1) // 2
    ends = np.cumsum(sizes)
    classes = np.searchsorted(ends, numbers, side="right")
    within = numbers - (ends - sizes)[classes]
    size = counts[classes]
    # Row i starts at i (2 m - i + 1) / 2; the root may be off by one in floating point.
    root = np.sqrt((2.0 * size + 1) ** 2 - 8.0 * within)
    rows = np.clip(((2 * size + 1 - root) / 2).astype(np.int64), 0, size - 1)
    rows -= within < _row_start(rows, size)
    rows += within >= _row_start(rows + 1, size)
    columns = rows + within - _row_start(rows, size)
    return np.stack([order[starts[classes] + rows], order[starts[classes] + columns]], axis=1)


def negative_pairs(class_ids: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns the negative pairs with these numbers, int64 [n, 2].

    They are numbered by their pair of classes, and then row by row in the matrix of both.
    """
    order, starts, counts = _classes(class_ids)
    first, second = np.triu_indices(len(counts), 1)
    sizes = counts[first] * counts[second]
    ends = np.cumsum(sizes)
    blocks = np.searchsorted(ends, numbers, side="right")
    within = numbers - (ends - sizes)[blocks]
    rows, columns = np.divmod(within, counts[second[blocks]])
    pairs = starts[first[blocks]] + rows, starts[second[blocks]] + columns
    return np.stack([order[pairs[0]], order[pairs[1]]], axis=1)


def _classes(class_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the texts sorted by class, and where each class starts and how many texts it has."""
    order = np.argsort(class_ids, kind="stable")
    _, starts, counts = np.unique(class_ids[order], return_index=True, return_counts=True)
    return order, starts, counts.astype(np.int64)


def _row_start(rows: np.ndarray, size: np.ndarray) -> np.ndarray:
    return rows * (2 * size - rows + 1) // 2


class SentenceEmbeddingLoader:
    """Iterates over full batches without end; gives the rows of this process.

    An epoch contains each example at most once. Examples that do not fill a last batch are left
    out; they are others in each epoch.

    Args:
      features: the tokenized groups of texts.
      text_ids: int64 [examples, texts], equal for equal texts, to have no text twice in a batch;
        None to allow it.
      bucket_lengths: the lengths that a batch may have, ascending.
      by_length: whether a batch has examples of similar length.
      batch_size: examples of a batch over all processes.
      regularizer_warmup: (updates before this loader's first batch, updates in which the weight of
        a regularization grows from 0 with their square); the batch field `regularizer_scale` is the
        part of the weight at this update. None for losses without such a field.
      deletion: of words of the first text of each example; None for none.
      num_parts: the microbatches or chunks of a batch, which have packed rows of their own.
      packed_rows: for each length, the rows of the batch field `packed_tokens`; see
        `count_packed_rows`. None for batches without this field.
      start: the `position` of an earlier loader, to continue from there.

    Raises:
      UserError: there are not enough examples with different texts for one batch.
    """

    def __init__(
        self,
        features: Features,
        text_ids: np.ndarray | None,
        bucket_lengths: Sequence[int],
        *,
        by_length: bool,
        batch_size: int,
        seed: int,
        pad_id: int,
        process_index: int = 0,
        process_count: int = 1,
        regularizer_warmup: tuple[int, int] | None = None,
        deletion: WordDeletion | None = None,
        num_parts: int = 1,
        packed_rows: Mapping[int, int] | None = None,
        start: int = 0,
    ) -> None:
        self._features, self._bucket_lengths = features, tuple(bucket_lengths)
        self._by_length = by_length
        self._rows = None if text_ids is None else [set(row) for row in text_ids.tolist()]
        self._batch_size, self._seed, self._pad_id = batch_size, seed, pad_id
        rows_per_process = batch_size // process_count
        self._process_rows = slice(
            process_index * rows_per_process, (process_index + 1) * rows_per_process
        )
        self._position, self._regularizer_warmup = start, regularizer_warmup
        self._deletion = deletion
        self._process_index, self._process_count = process_index, process_count
        self._num_parts, self._packed_rows = num_parts, packed_rows
        self._epochs: list[np.ndarray] = []

    @property
    def examples_per_epoch(self) -> int:
        """Returns the number of examples in the batches of the first epoch."""
        return self.num_batches(0) * self._batch_size

    # Counts batches over all epochs: examples with a repeated text move to later batches, so epochs
    # may differ by a batch.
    @property
    def position(self) -> int:
        """Returns the number of examples in the batches so far."""
        return self._position

    def num_batches(self, epoch: int) -> int:
        """Returns the number of batches of an epoch; epochs may differ by the examples left out."""
        return len(self.epoch_batches(epoch))

    def distinct_batch_lengths(self, num_batches: int) -> list[int]:
        """Returns the lengths of the first batches, ascending."""
        lengths = {self._length(self._batch(index)) for index in range(num_batches)}
        return sorted(lengths)

    @functools.cached_property
    def text_lengths(self) -> np.ndarray:
        """Returns the number of tokens of each text of all examples, int [examples, A]."""
        lengths = [len(ids) for ids in self._features.input_ids]
        return np.array(lengths).reshape(len(self._features), -1)

    def count_packed_rows(self, num_batches: int, multiple: int) -> dict[int, int]:
        """Returns for each length of the first batches the rows of `packed_tokens` that they need.

        They are those of all parts and processes.

        Args:
          multiple: the number of devices, over which the rows of a part are split evenly.
        """
        counts: dict[int, int] = {}
        for indices in map(self._batch, range(num_batches)):
            length, texts = self._length(indices), self.text_lengths[indices]
            count = rows_per_part(texts, length, self._process_count, self._num_parts)
            counts[length] = max(count, counts.get(length, 0))
        rounded = {
            length: -(-count * self._process_count // multiple) * multiple
            for length, count in counts.items()
        }
        return {length: count * self._num_parts for length, count in sorted(rounded.items())}

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        step = self._position // self._batch_size
        indices = self._batch(step)
        self._position += self._batch_size
        batch = collate(
            self._features,
            indices,
            self._batch_size,
            self._length(indices),
            self._pad_id,
            process_rows=self._process_rows,
        )
        if self._regularizer_warmup is not None:
            first_step, warmup_steps = self._regularizer_warmup
            scale = regularizer_scale(first_step + step, warmup_steps)
            batch["regularizer_scale"] = np.full(len(batch["example_weights"]), scale, np.float32)
        if self._packed_rows is not None:
            length = self._length(indices)
            rows = packed_tokens(
                self.text_lengths[indices],
                (self._packed_rows[length], length),
                self._process_count,
                self._num_parts,
            )
            batch[PACKED_TOKENS] = np.split(rows, self._process_count)[self._process_index]
        if self._deletion is not None:
            self._delete_words(self._deletion, batch, step, indices[self._process_rows])
        return batch

    def _delete_words(
        self, deletion: WordDeletion, batch: Batch, step: int, examples: np.ndarray
    ) -> None:
        """Deletes words of the first text of each example in a batch of this process."""
        ids_BL, mask_BL = batch["choice_input_ids"][:, 0], batch["choice_attention_mask"][:, 0]
        for ids, mask, example in zip(ids_BL, mask_BL, examples.tolist(), strict=True):
            rng = np.random.default_rng((self._seed, step, example))
            rest = deletion.apply(ids[mask > 0], rng)
            ids[:], mask[:] = self._pad_id, 0
            ids[: len(rest)], mask[: len(rest)] = rest, 1

    def _length(self, indices: np.ndarray) -> int:
        """Returns the smallest bucket length that holds the longest text of a batch."""
        longest = self._features.lengths[indices].max()
        return int(self._bucket_lengths[np.searchsorted(self._bucket_lengths, longest)])

    def _batch(self, index: int) -> np.ndarray:
        """Returns the examples of a batch, int64 [B], counted over all epochs."""
        # Epochs may have different numbers of batches, so the epoch of a batch is counted and not
        # divided.
        for epoch in itertools.count():
            batches = self.epoch_batches(epoch)
            if index < len(batches):
                return batches[index]
            index -= len(batches)
        raise AssertionError("itertools.count does not end")

    def epoch_batches(self, epoch: int) -> np.ndarray:
        """Returns the examples of all batches of an epoch, int64 [batches, B]."""
        size = len(self._features)
        while len(self._epochs) <= epoch:
            key = epoch_key(self._seed, len(self._epochs))
            order = permute(np.arange(size), size, key)
            if self._rows is None:
                # Losses with in-batch negatives would be smaller in a smaller batch, so no batch is
                # partly full.
                order = order[: size - size % self._batch_size]
                if self._by_length:
                    planned = plan_batches(
                        self._features.lengths, order, self._bucket_lengths, self._batch_size
                    )
                    shuffled = shuffle_batches(planned, self._seed, len(self._epochs))
                    order = np.array([batch.indices for batch in shuffled], np.int64)
                batches = order.reshape(-1, self._batch_size)
            else:
                batches = distinct_batches(self._rows, order, self._batch_size)
            if not len(batches):
                different = "" if self._rows is None else " with different texts"
                raise UserError(
                    f"the batch size is {self._batch_size}, but of the {size:,} training examples "
                    f"no {self._batch_size}{different} can be found; choose a smaller --batch-size"
                )
            self._epochs.append(batches)
        return self._epochs[epoch]


def regularizer_scale(step: int, warmup_steps: int) -> float:
    """Returns the part of the weight of a regularization at an update, counted from 0.

    It is (step / warmup_steps)^2, and 1 from `warmup_steps` on (Formal et al. 2021, section 4).
    """
    return 1.0 if step >= warmup_steps else (step / warmup_steps) ** 2


# All batches are full, because the negatives of a text are the other examples of its batch.
def distinct_batches(
    texts_of_example: Sequence[set[int]], order: np.ndarray, batch_size: int
) -> np.ndarray:
    """Groups examples into batches in which no text belongs to two examples.

    An example with a text that the current batch already has is put into a later batch.

    Args:
      texts_of_example: for each example, the numbers of its texts.
      order: int64 [n], the examples in the order in which they should be used.

    Returns:
      int64 [batches, batch_size], without the examples that did not fill a batch.
    """
    batches: list[list[int]] = []
    postponed: list[int] = []
    rest = iter(order.tolist())
    while True:
        earlier, batch, skipped = iter(postponed), [], []
        used: set[int] = set()
        for example in itertools.chain(earlier, rest):
            texts = texts_of_example[example]
            if not used.isdisjoint(texts):
                skipped.append(example)
                continue
            batch.append(example)
            used |= texts
            if len(batch) == batch_size:
                break
        if len(batch) < batch_size:
            return np.array(batches, np.int64).reshape(-1, batch_size)
        batches.append(batch)
        # Examples that were passed over come first in the next batch, so that none waits for long.
        # `earlier` still has those that this batch did not reach.
        postponed = [*skipped, *earlier]
