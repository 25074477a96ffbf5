"""Rows of features as batches of few shapes, in an order that one integer describes.

Rows of like length go together: a batch has one of the few given lengths, the shortest that all of
its rows fit in. The order of rows and batches is a function of (seed, epoch) alone, so a loader
started at a position goes on with the same batches on any number of hosts.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from bert_jax.batch import FIELDS
from bert_jax.data.finetuning.rows import Features
from bert_jax.data.pretraining.rng import epoch_key, permute
from bert_jax.errors import ConfigError

Batch = dict[str, np.ndarray]
_BATCH_ORDER_EPOCH_OFFSET = 1 << 32
"""Added to an epoch's number for the order of its batches, apart from that of its rows."""


class PlannedBatch(NamedTuple):
    """One batch to be: its length, and its rows' numbers, fewer than the batch has at the end."""

    length: int
    indices: np.ndarray


class EpochSampler(Protocol):
    """Which rows the epochs have."""

    def __len__(self) -> int:
        """Rows of an epoch."""
        ...

    def __call__(self, epoch: int) -> np.ndarray:
        """int64 [rows of an epoch]: their numbers, in the order in which they are drawn."""
        ...


class ShuffleSampler:
    """Every row once in each epoch, the order a function of (seed, epoch)."""

    def __init__(self, num_sequences: int, seed: int):
        self._num_sequences, self._seed = num_sequences, seed

    def __len__(self) -> int:
        return self._num_sequences

    def __call__(self, epoch: int) -> np.ndarray:
        """See `Order`."""
        return permute(
            np.arange(self._num_sequences), self._num_sequences, epoch_key(self._seed, epoch)
        )


class FineTuningLoader:
    """An endless iterator over this host's rows of batches.

    Args:
      features: labelled rows.
      lengths: ascending; the lengths that a batch may have, the last at least the longest row's.
      batch_size: rows of a batch over all hosts.
      seed: decides the order, together with the position.
      pad_id: the id that pads a row.
      order: which rows an epoch has; None for `EveryRow`.
      host_index, host_count: which equal, contiguous share of each batch's rows to make.
      start: the `position` of an earlier loader to go on from.

    Raises:
      ConfigError: there are no rows, or one is longer than the last of `lengths`.
    """

    def __init__(
        self,
        features: Features,
        bucket_lengths: Sequence[int],
        *,
        batch_size: int,
        seed: int,
        pad_id: int,
        sampler: EpochSampler | None = None,
        process_index: int = 0,
        process_count: int = 1,
        start: int = 0,
    ) -> None:
        self._sampler = ShuffleSampler(len(features), seed) if sampler is None else sampler
        self._features, self._bucket_lengths = features, tuple(bucket_lengths)
        self._batch_size, self._seed, self._pad_id = batch_size, seed, pad_id
        rows_per_process = batch_size // process_count
        self._process_rows = slice(
            process_index * rows_per_process, (process_index + 1) * rows_per_process
        )
        self._position = start
        self._epoch_plan: tuple[int, list[PlannedBatch]] = (-1, [])
        if not len(features):
            raise ConfigError("there is no row to train on")
        _check_lengths(features, self._bucket_lengths)

    @property
    def batches_per_epoch(self) -> int:
        """Batches of an epoch; one of them may not be full."""
        return -(-len(self._sampler) // self._batch_size)

    @property
    def position(self) -> int:
        """Rows of the batches handed out so far, with those that only fill one up."""
        return self._position

    def distinct_batch_lengths(self, epochs: int = 1) -> list[int]:
        """The lengths that occur in so many epochs, ascending: for `EveryRow` the same in each."""
        return sorted({length for epoch in range(epochs) for length in self.batch_lengths(epoch)})

    def batch_lengths(self, epoch: int = 0) -> list[int]:
        """The length of each batch of an epoch, in order."""
        return [batch.length for batch in self._plan_epoch(epoch)]

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        epoch, batch_index = divmod(self._position // self._batch_size, self.batches_per_epoch)
        length, indices = self._plan_epoch(epoch)[batch_index]
        self._position += self._batch_size
        return collate(
            self._features,
            indices,
            self._batch_size,
            length,
            self._pad_id,
            process_rows=self._process_rows,
        )

    def _plan_epoch(self, epoch: int) -> list[PlannedBatch]:
        if self._epoch_plan[0] != epoch:
            epoch_indices = self._sampler(epoch)
            batches = plan_batches(
                self._features.lengths, epoch_indices, self._bucket_lengths, self._batch_size
            )
            order_key = epoch_key(self._seed, epoch + _BATCH_ORDER_EPOCH_OFFSET)
            batch_order = permute(np.arange(len(batches)), len(batches), order_key)
            self._epoch_plan = (epoch, [batches[number] for number in batch_order])
        return self._epoch_plan[1]


def evaluation_batches(
    features: Features,
    bucket_lengths: Sequence[int],
    *,
    batch_size: int,
    pad_id: int,
    process_index: int = 0,
    process_count: int = 1,
) -> Iterator[tuple[np.ndarray, Batch]]:
    """Every row once, by length: (the rows' numbers over all hosts, this host's share)."""
    _check_lengths(features, bucket_lengths)
    indices_by_length = np.argsort(features.lengths, kind="stable")
    rows_per_process = batch_size // process_count
    process_rows = slice(process_index * rows_per_process, (process_index + 1) * rows_per_process)
    for length, indices in plan_batches(
        features.lengths, indices_by_length, bucket_lengths, batch_size
    ):
        yield (
            indices,
            collate(features, indices, batch_size, length, pad_id, process_rows=process_rows),
        )


def plan_batches(
    seq_lengths: np.ndarray,
    epoch_indices: np.ndarray,
    bucket_lengths: Sequence[int],
    batch_size: int,
) -> list[PlannedBatch]:
    """Rows in `order`, those of one bucket together, as batches of `batch_size`.

    What is left over in a bucket goes to the next one that has rows, so at most one batch is not
    full, and there are as many batches as without buckets.
    """
    bucket_of_sequence = np.searchsorted(bucket_lengths, seq_lengths[epoch_indices])
    used_buckets = np.unique(bucket_of_sequence)
    batches, leftover = [], np.zeros(0, epoch_indices.dtype)
    for bucket_index in used_buckets:
        bucket_sequences = np.concatenate(
            [leftover, epoch_indices[bucket_of_sequence == bucket_index]]
        )
        num_batched = (
            len(bucket_sequences)
            if bucket_index == used_buckets[-1]
            else len(bucket_sequences) - len(bucket_sequences) % batch_size
        )
        batches += [
            PlannedBatch(bucket_lengths[bucket_index], bucket_sequences[first : first + batch_size])
            for first in range(0, num_batched, batch_size)
        ]
        leftover = bucket_sequences[num_batched:]
    return batches


def collate(
    features: Features,
    indices: np.ndarray,
    batch_size: int,
    length: int,
    pad_id: int,
    *,
    process_rows: slice = slice(None),
) -> Batch:
    """The batch fields of `rows`, padded to [batch_size, length]; `share` cuts out some rows.

    Rows after those of `rows` have `example_weights` 0.
    """
    selected = [int(sequence_index) for sequence_index in indices[process_rows]]
    num_rows = len(range(*process_rows.indices(batch_size)))
    batch = _collate_inputs(features, selected, num_rows, length, pad_id)
    weights = np.zeros(num_rows, np.float32)
    weights[: len(selected)] = 1
    batch["example_weights"] = weights
    for name, values in (*features.targets.items(), *features.encoder_features.items()):
        is_per_token, shape = FIELDS[name].dims.startswith("BL"), np.shape(values[0])
        shape = (num_rows, length, *shape[1:]) if is_per_token else (num_rows, *shape)
        padded = np.zeros(shape, FIELDS[name].dtype)
        for batch_row, sequence_index in enumerate(selected):
            if is_per_token:  # states may go on into the padding of longer batches
                padded[batch_row, : len(values[sequence_index])] = values[sequence_index][:length]
            else:
                padded[batch_row] = values[sequence_index]
        batch[name] = padded
    return batch


def _collate_inputs(
    features: Features, indices: Sequence[int], num_rows: int, length: int, pad_id: int
) -> Batch:
    num_choices = features.num_choices
    input_ids = np.full((num_rows, num_choices, length), pad_id, np.int32)
    token_type_ids, attention_mask = np.zeros_like(input_ids), np.zeros_like(input_ids)
    for batch_row, sequence_index in enumerate(indices):
        for choice in range(num_choices):
            token_ids = features.input_ids[sequence_index * num_choices + choice]
            input_ids[batch_row, choice, : len(token_ids)] = token_ids
            token_type_ids[batch_row, choice, : len(token_ids)] = features.token_type_ids[
                sequence_index * num_choices + choice
            ]
            attention_mask[batch_row, choice, : len(token_ids)] = 1
    attention_mask[len(indices) :, :, 0] = 1  # an empty row has no defined attention
    fields = {
        "input_ids": input_ids,
        "token_type_ids": token_type_ids,
        "attention_mask": attention_mask,
    }
    if num_choices > 1:
        return {f"choice_{name}": array for name, array in fields.items()}
    return {name: array[:, 0] for name, array in fields.items()}


def _check_lengths(features: Features, bucket_lengths: Sequence[int]) -> None:
    max_length = int(features.lengths.max(initial=0))
    if max_length > bucket_lengths[-1]:
        raise ConfigError(
            f"a row has {max_length} pieces, but the longest batch has {bucket_lengths[-1]}"
        )
