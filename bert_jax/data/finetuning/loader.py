"""Loads features as padded batches of a few lengths, for fine-tuning and evaluation.

Sequences of similar length are batched together: a batch has the smallest of the bucket lengths in
which all of its sequences fit. The order of sequences and batches is a function of (seed, epoch),
so a loader that starts at a position continues with the same batches on any number of processes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from bert_jax.batch import FIELDS
from bert_jax.data.finetuning.features import Features
from bert_jax.data.pretraining.rng import epoch_key, permute
from bert_jax.errors import ConfigError

Batch = dict[str, np.ndarray]
_BATCH_ORDER_EPOCH_OFFSET = 1 << 32
"""Added to an epoch's index, so that the order of batches differs from the order of sequences."""


class PlannedBatch(NamedTuple):
    """Holds the length of a batch and the indices of its sequences, fewer in the last batch."""

    length: int
    indices: np.ndarray


class EpochSampler(Protocol):
    """Chooses the sequences of each epoch and their order."""

    def __len__(self) -> int:
        """Returns the number of sequences in an epoch."""
        ...

    def __call__(self, epoch: int) -> np.ndarray:
        """Returns the indices of an epoch's sequences, int64 [len(self)], in order."""
        ...


class ShuffleSampler:
    """Draws every sequence once in each epoch, in an order that depends on (seed, epoch)."""

    def __init__(self, num_sequences: int, seed: int):
        self._num_sequences, self._seed = num_sequences, seed

    def __len__(self) -> int:
        return self._num_sequences

    def __call__(self, epoch: int) -> np.ndarray:
        """Returns the indices of an epoch, see `EpochSampler`."""
        return permute(
            np.arange(self._num_sequences), self._num_sequences, epoch_key(self._seed, epoch)
        )


class FineTuningLoader:
    """Iterates over training batches without end; gives the rows of this process.

    Args:
      features: labeled sequences.
      bucket_lengths: the lengths that a batch may have, ascending; the last one is at least the
        length of the longest sequence.
      batch_size: rows of a batch over all processes.
      pad_id: the token id of padding.
      sampler: chooses the sequences of an epoch; None for `ShuffleSampler`.
      texts_per_query: None, or the largest number of sequences with the same target "query_ids".
        All sequences of a query are then in one batch, in which each query has room for this
        number; an epoch has all queries, and a sampler is not used.
      process_index, process_count: each process gets an equal, contiguous part of a batch's rows.
      start: the `position` of an earlier loader, to continue from there.

    Raises:
      ConfigError: there are no sequences, or one is longer than the last of `bucket_lengths`.
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
        texts_per_query: int | None = None,
        process_index: int = 0,
        process_count: int = 1,
        start: int = 0,
    ) -> None:
        # What an epoch and a batch consist of: sequences, or all sequences of a query.
        self._queries: list[np.ndarray] | None = None
        self._lengths, self._batch_items = features.lengths, batch_size
        if texts_per_query is not None:
            self._queries = _sequences_of_queries(features)
            self._lengths = np.array([features.lengths[query].max() for query in self._queries])
            # A constant number, so that the epochs have equally many batches.
            self._batch_items = batch_size // texts_per_query
        num_items = len(self._lengths)
        self._sampler = ShuffleSampler(num_items, seed) if sampler is None else sampler
        self._features, self._bucket_lengths = features, tuple(bucket_lengths)
        self._batch_size, self._seed, self._pad_id = batch_size, seed, pad_id
        rows_per_process = batch_size // process_count
        self._process_rows = slice(
            process_index * rows_per_process, (process_index + 1) * rows_per_process
        )
        self._position = start
        self._epoch_plan: tuple[int, list[PlannedBatch]] = (-1, [])
        if not len(features):
            raise ConfigError("there are no sequences to train on")
        _check_lengths(features, self._bucket_lengths)

    @property
    def batches_per_epoch(self) -> int:
        """Returns the number of batches in an epoch; one of them may not be full."""
        return -(-len(self._sampler) // self._batch_items)

    @property
    def examples_per_epoch(self) -> int:
        """Returns the number of examples in an epoch, padding examples included."""
        return self.batches_per_epoch * self._batch_size

    @property
    def position(self) -> int:
        """Returns the number of examples in the batches so far, padding examples included."""
        return self._position

    def distinct_batch_lengths(self, epochs: int = 1) -> list[int]:
        """Returns the batch lengths that occur in the first epochs, ascending.

        With `ShuffleSampler` they are the same in every epoch.
        """
        return sorted({length for epoch in range(epochs) for length in self.batch_lengths(epoch)})

    def batch_lengths(self, epoch: int = 0) -> list[int]:
        """Returns the length of each batch of an epoch, in order."""
        return [batch.length for batch in self._plan_epoch(epoch)]

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        # Padding examples count in the position, so it gives epoch and batch without the plans of
        # earlier epochs.
        epoch, batch_index = divmod(self._position // self._batch_size, self.batches_per_epoch)
        length, indices = self._plan_epoch(epoch)[batch_index]
        self._position += self._batch_size
        return collate(
            self._features.of_epoch(indices[self._process_rows].tolist(), self._seed, epoch),
            indices,
            self._batch_size,
            length,
            self._pad_id,
            process_rows=self._process_rows,
        )

    def _plan_epoch(self, epoch: int) -> list[PlannedBatch]:
        if self._epoch_plan[0] != epoch:
            batches = plan_batches(
                self._lengths, self._sampler(epoch), self._bucket_lengths, self._batch_items
            )
            if self._queries is not None:
                queries = self._queries
                batches = [
                    PlannedBatch(length, np.concatenate([queries[item] for item in items]))
                    for length, items in batches
                ]
            self._epoch_plan = (epoch, shuffle_batches(batches, self._seed, epoch))
        return self._epoch_plan[1]


def _sequences_of_queries(features: Features) -> list[np.ndarray]:
    """Returns the indices of the sequences of each query, queries in the order of their ids."""
    ids = np.array(features.targets["query_ids"], np.int64)
    order = np.argsort(ids, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(ids[order])) + 1)


def evaluation_batches(
    features: Features,
    bucket_lengths: Sequence[int],
    *,
    batch_size: int,
    pad_id: int,
    process_index: int = 0,
    process_count: int = 1,
) -> Iterator[tuple[np.ndarray, Batch]]:
    """Yields every sequence once, sorted by length: (indices over all processes, own rows)."""
    _check_lengths(features, bucket_lengths)
    # Sorted by length, neighbors need little padding, and the same order on all processes needs no
    # communication.
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


def gather_outputs(
    batches: Iterable[tuple[np.ndarray, Mapping[str, np.ndarray]]], num_sequences: int
) -> dict[str, list[np.ndarray]]:
    """Puts the outputs of `evaluation_batches` back into the order of the sequences.

    Args:
      batches: (indices of the sequences, outputs whose first rows belong to these sequences).

    Returns:
      Output name -> one array for each sequence.
    """
    outputs: dict[str, list[np.ndarray]] = {}
    for indices, batch_outputs in batches:
        for name, values in batch_outputs.items():
            # A list and not an array: outputs such as the logits of tokens have other lengths in
            # each bucket.
            by_sequence = outputs.setdefault(name, [np.zeros(0)] * num_sequences)
            for batch_row, sequence_index in enumerate(indices):
                by_sequence[sequence_index] = values[batch_row]
    return outputs


# Examples left over in a bucket move to the next longer one, so that an epoch has as many updates
# as with one length and at most one batch that is not full. Examples are not packed: with buckets
# there is little padding left to save, and every head would need a gather.
def plan_batches(
    seq_lengths: np.ndarray,
    epoch_indices: np.ndarray,
    bucket_lengths: Sequence[int],
    batch_size: int,
) -> list[PlannedBatch]:
    """Groups the sequences of an epoch by bucket and cuts the groups into batches.

    Sequences that do not fill a batch move to the next longer bucket in use, so at most one batch
    is not full, and there are no more batches than without buckets.
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


def shuffle_batches(batches: list[PlannedBatch], seed: int, epoch: int) -> list[PlannedBatch]:
    """Puts the batches of an epoch into an order that depends on (seed, epoch).

    They are planned bucket by bucket, so training would go from short to long texts without it.
    """
    order_key = epoch_key(seed, epoch + _BATCH_ORDER_EPOCH_OFFSET)
    order = permute(np.arange(len(batches)), len(batches), order_key)
    return [batches[number] for number in order]


MAX_LENGTHS = 5
"""Most lengths that are fitted to the data, because the train step is compiled for each."""
_COMPILATION = 10
"""How many updates take about as long as the compilation of a train step, which is 7 to 8 CPU
seconds for an encoder of six layers. A further length must save as much."""
_MANY_UPDATES = 200
"""Longer runs do not get lengths that save less."""
LENGTH_MULTIPLE = 8
"""Of which fitted lengths are multiples, for the vector units of all hardware."""


def fit_bucket_lengths(
    lengths: np.ndarray,
    max_length: int,
    num_updates: float = _MANY_UPDATES,
    *,
    tokens_per_batch: np.ndarray | None = None,
    num_parts: int = 1,
) -> tuple[int, ...]:
    """Chooses the bucket lengths with which a run has few tokens, padding included.

    The longest sequence needs the last length. Others are added one after another, the one that
    saves most first. Doubles of the last follow up to `max_length`, for other texts than these.

    Args:
      lengths: int [n], the number of tokens of each sequence, or of the longest in each batch.
      num_updates: the updates of the run. In a short one the compilation of a further train step
        takes longer than it saves.
      tokens_per_batch: int [n], if the texts of a batch share rows of its length. All batches of a
        length have as many rows as the fullest of them needs.
      num_parts: the parts of such a batch that have rows of their own.

    Returns:
      Multiples of 8, ascending, all below `max_length`.
    """
    if not len(lengths):
        return ()
    rounded = np.minimum(-(-lengths // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, max_length)
    candidates, counts = np.unique(rounded, return_counts=True)

    def num_tokens(chosen: list[int]) -> int:
        ascending = np.sort(chosen)
        if tokens_per_batch is not None:
            bucket = np.searchsorted(ascending, rounded)
            rows = np.zeros(len(ascending), np.int64)
            np.maximum.at(rows, bucket, -(-tokens_per_batch // (num_parts * ascending[bucket])))
            return int(np.sum((num_parts * rows * ascending)[bucket]))
        return int(np.sum(counts * ascending[np.searchsorted(ascending, candidates)]))

    min_saving = _COMPILATION / min(num_updates, _MANY_UPDATES)
    chosen = [int(candidates[-1])]
    while len(chosen) < MAX_LENGTHS:
        best = min(candidates.tolist(), key=lambda length: num_tokens([*chosen, length]))
        if num_tokens([*chosen, best]) > (1 - min_saving) * num_tokens(chosen):
            break
        chosen.append(best)
    return with_doubles(sorted(chosen), max_length)


def with_doubles(lengths: Sequence[int], max_length: int) -> tuple[int, ...]:
    """Returns ascending lengths and doubles of the last one, without those from `max_length` on."""
    extended = [*lengths]
    while extended and extended[-1] < max_length:
        extended.append(2 * extended[-1])
    return tuple(length for length in extended if length < max_length)


def collate(
    features: Features,
    indices: np.ndarray,
    batch_size: int,
    length: int,
    pad_id: int,
    *,
    process_rows: slice = slice(None),
) -> Batch:
    """Pads the sequences at `indices` to the fields of a batch of [batch_size, length].

    Rows after the last sequence are empty and have `example_weights` 0.

    Args:
      process_rows: the rows of the batch to return.
    """
    selected = [int(sequence_index) for sequence_index in indices[process_rows]]
    num_rows = len(range(*process_rows.indices(batch_size)))
    batch = _collate_inputs(features, selected, num_rows, length, pad_id)
    weights = np.zeros(num_rows, np.float32)
    weights[: len(selected)] = 1
    batch["example_weights"] = weights
    if features.window_mask is not None:
        batch["window_mask"] = np.zeros((num_rows, features.num_choices), np.int32)
        batch["window_mask"][: len(selected)] = features.window_mask[selected]
        batch["window_mask"][len(selected) :, 0] = 1  # a mean over no windows is undefined
    for name, values in (*features.targets.items(), *features.encoder_features.items()):
        is_per_token, shape = FIELDS[name].dims.startswith("BL"), np.shape(values[0])
        shape = (num_rows, length, *shape[1:]) if is_per_token else (num_rows, *shape)
        # Labels of padding are 0, a valid class, and do not count because their weight is 0.
        padded = np.zeros(shape, FIELDS[name].dtype)
        for batch_row, sequence_index in enumerate(selected):
            if is_per_token:  # cached encoder features may include padding of a longer batch
                value = np.asarray(values[sequence_index])
                padded[batch_row, : len(value)] = value[:length]
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
    # A softmax over no tokens is undefined: padding rows and missing windows have one.
    attention_mask[~attention_mask.any(axis=-1), 0] = 1
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
            f"a sequence has {max_length} tokens, but the longest bucket has {bucket_lengths[-1]}"
        )
