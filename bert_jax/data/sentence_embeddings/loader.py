"""Loads batches for training sentence encoders, in which no text occurs twice.

Losses with in-batch negatives treat the texts of all other examples as negatives, so a text that
occurs twice in a batch would be a negative of its own example. The batches are a function of (seed,
epoch): a loader that starts at a position continues with the same batches on any number of
processes.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.loader import Batch, collate
from bert_jax.data.pretraining.rng import epoch_key, permute
from bert_jax.errors import UserError


class SentenceEmbeddingLoader:
    """Iterates over full batches without end; gives the rows of this process.

    An epoch contains each example at most once. Examples that do not fill a last batch are left
    out; they are others in each epoch.

    Args:
      features: the tokenized groups of texts.
      text_ids: int64 [examples, texts], equal for equal texts, to have no text twice in a batch;
        None to allow it.
      bucket_lengths: the lengths that a batch may have, ascending.
      batch_size: examples of a batch over all processes.
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
        batch_size: int,
        seed: int,
        pad_id: int,
        process_index: int = 0,
        process_count: int = 1,
        start: int = 0,
    ) -> None:
        self._features, self._bucket_lengths = features, np.asarray(bucket_lengths)
        self._rows = None if text_ids is None else [set(row) for row in text_ids.tolist()]
        self._batch_size, self._seed, self._pad_id = batch_size, seed, pad_id
        rows_per_process = batch_size // process_count
        self._process_rows = slice(
            process_index * rows_per_process, (process_index + 1) * rows_per_process
        )
        self._position = start
        self._epochs: list[np.ndarray] = []

    @property
    def examples_per_epoch(self) -> int:
        """Returns the number of examples in the batches of the first epoch."""
        return self.num_batches(0) * self._batch_size

    @property
    def position(self) -> int:
        """Returns the number of examples in the batches so far."""
        return self._position

    def num_batches(self, epoch: int) -> int:
        """Returns the number of batches of an epoch; epochs may differ by the examples left out."""
        return len(self._epoch_batches(epoch))

    def distinct_batch_lengths(self, num_batches: int) -> list[int]:
        """Returns the lengths of the first batches, ascending."""
        lengths = {self._length(self._batch(index)) for index in range(num_batches)}
        return sorted(lengths)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        indices = self._batch(self._position // self._batch_size)
        self._position += self._batch_size
        return collate(
            self._features,
            indices,
            self._batch_size,
            self._length(indices),
            self._pad_id,
            process_rows=self._process_rows,
        )

    def _length(self, indices: np.ndarray) -> int:
        """Returns the smallest bucket length that holds the longest text of a batch."""
        longest = self._features.lengths[indices].max()
        return int(self._bucket_lengths[np.searchsorted(self._bucket_lengths, longest)])

    def _batch(self, index: int) -> np.ndarray:
        """Returns the examples of a batch, int64 [B], counted over all epochs."""
        for epoch in itertools.count():
            batches = self._epoch_batches(epoch)
            if index < len(batches):
                return batches[index]
            index -= len(batches)
        raise AssertionError("itertools.count does not end")

    def _epoch_batches(self, epoch: int) -> np.ndarray:
        """Returns the examples of all batches of an epoch, int64 [batches, B]."""
        size = len(self._features)
        while len(self._epochs) <= epoch:
            key = epoch_key(self._seed, len(self._epochs))
            order = permute(np.arange(size), size, key)
            if self._rows is None:
                full = size - size % self._batch_size
                batches = order[:full].reshape(-1, self._batch_size)
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
        postponed = [*skipped, *earlier]
