"""Rows of features as batches of few shapes, in an order that one integer describes.

Rows of like length go together: a batch has one of the few given lengths, the shortest that all of
its rows fit in. The order of rows and batches is a function of (seed, epoch) alone, so a loader
started at a position goes on with the same batches on any number of hosts.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from bert_jax.batch import FIELDS
from bert_jax.data.labelled.rows import Features
from bert_jax.data.random import epoch_key, permute
from bert_jax.errors import ConfigError

Batch = dict[str, np.ndarray]
_BATCH_ORDER = 1 << 32
"""Added to an epoch's number for the order of its batches, apart from that of its rows."""


class Planned(NamedTuple):
    """One batch to be: its length, and its rows' numbers, fewer than the batch has at the end."""

    length: int
    rows: np.ndarray


class Order(Protocol):
    """Which rows the epochs have."""

    def __len__(self) -> int:
        """Rows of an epoch."""
        ...

    def __call__(self, epoch: int) -> np.ndarray:
        """int64 [rows of an epoch]: their numbers, in the order in which they are drawn."""
        ...


class EveryRow:
    """Every row once in each epoch, the order a function of (seed, epoch)."""

    def __init__(self, rows: int, seed: int):
        self._rows, self._seed = rows, seed

    def __len__(self) -> int:
        return self._rows

    def __call__(self, epoch: int) -> np.ndarray:
        """See `Order`."""
        return permute(np.arange(self._rows), self._rows, epoch_key(self._seed, epoch))


class LabelledLoader:
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
        lengths: Sequence[int],
        *,
        batch_size: int,
        seed: int,
        pad_id: int,
        order: Order | None = None,
        host_index: int = 0,
        host_count: int = 1,
        start: int = 0,
    ) -> None:
        self._order = EveryRow(len(features), seed) if order is None else order
        self._features, self._lengths = features, tuple(lengths)
        self._batch_size, self._seed, self._pad_id = batch_size, seed, pad_id
        share = batch_size // host_count
        self._share = slice(host_index * share, (host_index + 1) * share)
        self._position = start
        self._planned: tuple[int, list[Planned]] = (-1, [])
        if not len(features):
            raise ConfigError("there is no row to train on")
        _check_lengths(features, self._lengths)

    @property
    def batches_per_epoch(self) -> int:
        """Batches of an epoch; one of them may not be full."""
        return -(-len(self._order) // self._batch_size)

    @property
    def position(self) -> int:
        """Rows of the batches handed out so far, with those that only fill one up."""
        return self._position

    def shapes(self, epochs: int = 1) -> list[int]:
        """The lengths that occur in so many epochs, ascending: for `EveryRow` the same in each."""
        return sorted({length for epoch in range(epochs) for length in self.batch_lengths(epoch)})

    def batch_lengths(self, epoch: int = 0) -> list[int]:
        """The length of each batch of an epoch, in order."""
        return [batch.length for batch in self._plan(epoch)]

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        epoch, number = divmod(self._position // self._batch_size, self.batches_per_epoch)
        length, rows = self._plan(epoch)[number]
        self._position += self._batch_size
        return collate(
            self._features, rows, self._batch_size, length, self._pad_id, share=self._share
        )

    def _plan(self, epoch: int) -> list[Planned]:
        if self._planned[0] != epoch:
            rows = self._order(epoch)
            batches = plan(self._features.lengths, rows, self._lengths, self._batch_size)
            turn = epoch_key(self._seed, epoch + _BATCH_ORDER)
            mixed = permute(np.arange(len(batches)), len(batches), turn)
            self._planned = (epoch, [batches[number] for number in mixed])
        return self._planned[1]


def evaluation_batches(
    features: Features,
    lengths: Sequence[int],
    *,
    batch_size: int,
    pad_id: int,
    host_index: int = 0,
    host_count: int = 1,
) -> Iterator[tuple[np.ndarray, Batch]]:
    """Every row once, by length: (the rows' numbers over all hosts, this host's share)."""
    _check_lengths(features, lengths)
    order = np.argsort(features.lengths, kind="stable")
    share = batch_size // host_count
    mine = slice(host_index * share, (host_index + 1) * share)
    for length, rows in plan(features.lengths, order, lengths, batch_size):
        yield rows, collate(features, rows, batch_size, length, pad_id, share=mine)


def plan(
    row_lengths: np.ndarray, order: np.ndarray, lengths: Sequence[int], batch_size: int
) -> list[Planned]:
    """Rows in `order`, those of one bucket together, as batches of `batch_size`.

    What is left over in a bucket goes to the next one that has rows, so at most one batch is not
    full, and there are as many batches as without buckets.
    """
    bucket = np.searchsorted(lengths, row_lengths[order])
    used = np.unique(bucket)
    batches, left = [], np.zeros(0, order.dtype)
    for number in used:
        rows = np.concatenate([left, order[bucket == number]])
        whole = len(rows) if number == used[-1] else len(rows) - len(rows) % batch_size
        batches += [
            Planned(lengths[number], rows[first : first + batch_size])
            for first in range(0, whole, batch_size)
        ]
        left = rows[whole:]
    return batches


def collate(
    features: Features,
    rows: np.ndarray,
    batch_size: int,
    length: int,
    pad_id: int,
    *,
    share: slice = slice(None),
) -> Batch:
    """The batch fields of `rows`, padded to [batch_size, length]; `share` cuts out some rows.

    Rows after those of `rows` have `example_weights` 0.
    """
    chosen = [int(row) for row in rows[share]]
    count = len(range(*share.indices(batch_size)))
    batch = _texts(features, chosen, count, length, pad_id)
    weights = np.zeros(count, np.float32)
    weights[: len(chosen)] = 1
    batch["example_weights"] = weights
    for name, values in (*features.targets.items(), *features.states.items()):
        each_token, shape = FIELDS[name].dims.startswith("BL"), np.shape(values[0])
        shape = (count, length, *shape[1:]) if each_token else (count, *shape)
        target = np.zeros(shape, FIELDS[name].dtype)
        for place, row in enumerate(chosen):
            if each_token:  # states may go on into the padding of longer batches
                target[place, : len(values[row])] = values[row][:length]
            else:
                target[place] = values[row]
        batch[name] = target
    return batch


def _texts(features: Features, rows: Sequence[int], count: int, length: int, pad_id: int) -> Batch:
    choices = features.choices
    ids = np.full((count, choices, length), pad_id, np.int32)
    types, mask = np.zeros_like(ids), np.zeros_like(ids)
    for place, row in enumerate(rows):
        for choice in range(choices):
            text = features.input_ids[row * choices + choice]
            ids[place, choice, : len(text)] = text
            types[place, choice, : len(text)] = features.token_type_ids[row * choices + choice]
            mask[place, choice, : len(text)] = 1
    mask[len(rows) :, :, 0] = 1  # an empty row has no defined attention
    fields = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    if choices > 1:
        return {f"choice_{name}": array for name, array in fields.items()}
    return {name: array[:, 0] for name, array in fields.items()}


def _check_lengths(features: Features, lengths: Sequence[int]) -> None:
    longest = int(features.lengths.max(initial=0))
    if longest > lengths[-1]:
        raise ConfigError(f"a row has {longest} pieces, but the longest batch has {lengths[-1]}")
