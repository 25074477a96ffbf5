"""Loads pretraining batches in an order whose state is a single integer.

`PretrainingLoader.position` is the number of global examples in the batches returned so far. A
loader that starts there continues with the same batches, even with another number of processes,
workers or prefetched batches (see batch_builder.py). It uses grain and imports no TensorFlow.
"""

from collections.abc import Iterator
from typing import Any

from bert_jax.config.data import PretrainingData
from bert_jax.data.pretraining.batch_builder import Batch, BatchBuilder
from bert_jax.io.parent_process import exit_with_parent

# grain needs a length: this is more batches than any run reads.
_UNBOUNDED_LENGTH = 1 << 62


class PretrainingLoader:
    """Iterates without end over this process's rows of batches, built in the background.

    Args:
      batch_builder: what builds the batches.
      start: the position to begin at: `position` of an earlier loader with the same batches.

    Raises:
      UserError: during iteration, a shard is damaged.
    """

    def __init__(self, batch_builder: BatchBuilder, start: int = 0) -> None:
        self.batch_builder = batch_builder
        self._position = start
        self._iterator = _prefetch(_IndexedBatches(batch_builder, start), batch_builder.config)

    @property
    def position(self) -> int:
        """Returns the number of examples, over all processes, in the batches returned so far."""
        return self._position

    @property
    def examples_per_epoch(self) -> int:
        """Returns the number of examples in an epoch."""
        return self.batch_builder.examples_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch, self._position = next(self._iterator)
        return batch

    def example_indices(self, position: int) -> range:
        """Returns the global examples of the batch that begins at `position`."""
        refs, _ = self.batch_builder.plan_batch(position)
        return range(position, position + len(refs.example_indices))

    def close(self) -> None:
        """Stops the background work."""
        self._iterator.close()

    def __enter__(self) -> "PretrainingLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def evaluation_batches(batch_builder: BatchBuilder, num_examples: int) -> Iterator[Batch]:
    """Yields the first batches of epoch 0, which are the same in every evaluation.

    The number of batches is the number of whole batches in `num_examples` examples, or in one epoch
    if that is shorter; there is at least one batch.

    Raises:
      UserError: a shard is damaged.
    """
    end = min(num_examples, batch_builder.examples_per_epoch)
    position = 0
    # Only whole batches, because the evaluation step is compiled for one shape; at least one, or a
    # small held-out corpus would have no loss.
    while position == 0 or position + batch_builder.batch_size <= end:
        batch, position = batch_builder.build_batch(position)
        yield batch


class _IndexedBatches:
    """Builds batch k after a start position; fast if k increases from call to call."""

    def __init__(self, batch_builder: BatchBuilder, start: int) -> None:
        # grain calls batch k in any worker. With packing, the position of batch k follows from all
        # batches before it, so the last one is remembered.
        self._batch_builder = batch_builder
        self._start = start
        self._next_index_and_position = (0, start)

    def __call__(self, batch_index: int) -> tuple[Batch, int]:
        first_index, position = (
            self._next_index_and_position
            if self._next_index_and_position[0] <= batch_index
            else (0, self._start)
        )
        for _ in range(first_index, batch_index):  # another worker builds these
            position += len(self._batch_builder.plan_batch(position)[1].rows)
        batch, position = self._batch_builder.build_batch(position)
        self._next_index_and_position = (batch_index + 1, position)
        return batch, position


def _prefetch(indexed_batches: _IndexedBatches, config: PretrainingData) -> Any:
    """Builds the batches 0, 1, 2, ... in order, before the consumer needs them."""
    import grain

    # One thread: building a batch holds the interpreter lock, and needs the batch before it.
    read_options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=config.prefetch_batches)
    dataset = (
        grain.MapDataset.range(0, _UNBOUNDED_LENGTH)
        .map(indexed_batches)
        .to_iter_dataset(read_options)
    )
    if config.num_workers:
        from absl import flags

        if not flags.FLAGS.is_parsed():  # grain's workers read absl flags, which we never parse
            flags.FLAGS.mark_as_parsed()
        dataset = dataset.mp_prefetch(
            grain.MultiprocessingOptions(
                num_workers=config.num_workers, per_worker_buffer_size=config.prefetch_batches
            ),
            worker_init_fn=_end_with_parent,
        )
    return iter(dataset)


def _end_with_parent(worker_index: int, num_workers: int) -> None:
    """Makes a worker process of grain end with its parent."""
    del worker_index, num_workers
    exit_with_parent()
