"""The training loader: batches in an order that one integer describes.

`PretrainLoader.position` is the number of global examples consumed by the batches handed out so
far; a loader started there goes on with the same batches, whatever the number of hosts, workers
or prefetched batches then is (see batches.py). Reads with grain; imports no TensorFlow.
"""

from collections.abc import Iterator
from typing import Any

from bert_jax.data.batches import Batch, BatchMaker
from bert_jax.data.config import LoaderConfig
from bert_jax.data.prepared import PreparedCorpus
from bert_jax.data.token_table import TokenTable

# grain wants a length: more batches than will ever be asked for.
_ENDLESS = 1 << 62


class PretrainLoader:
    """An endless iterator over this host's rows of batches, made ahead in the background.

    Args:
      prepared: the corpus; config: what examples are made of it.
      length: L; batch_size: global B; max_predictions: P.
      seed: decides order, windows, pairs and masks, together with the position.
      host_index, host_count: which equal, contiguous share of each batch's rows to make.
      start: the position to begin at, a `position` of an earlier loader with the same settings.
      table: facts of the vocabulary; read from the corpus unless given.

    Raises:
      ConfigError: sizes that cannot be.
      UserError: a corpus that this cannot be made from; later, a damaged shard.
    """

    def __init__(
        self,
        prepared: PreparedCorpus,
        config: LoaderConfig,
        *,
        length: int,
        batch_size: int,
        max_predictions: int,
        seed: int,
        host_index: int = 0,
        host_count: int = 1,
        start: int = 0,
        table: TokenTable | None = None,
    ) -> None:
        self._corpus = prepared
        self.maker = BatchMaker(
            prepared,
            table or TokenTable.from_vocabulary(prepared.vocabulary()),
            config,
            length=length,
            batch_size=batch_size,
            max_predictions=max_predictions,
            seed=seed,
            host_index=host_index,
            host_count=host_count,
        )
        self._position = start
        self._iterator = _prefetched(_BatchNumber(self.maker, start), config)

    @property
    def position(self) -> int:
        """Global examples consumed by the batches handed out so far."""
        return self._position

    @property
    def epoch(self) -> float:
        """Epochs consumed so far."""
        return self._position / self.maker.epoch_examples

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch, self._position = next(self._iterator)
        return batch

    def example_indices(self, position: int) -> range:
        """The global examples in the batch that begins at `position`."""
        examples, _ = self.maker.plan(position)
        return range(position, position + len(examples.examples))

    def example_documents(self, position: int) -> list[int]:
        """The documents, numbered over the whole corpus, of the batch that begins there."""
        examples, _ = self.maker.plan(position)
        return examples.documents.tolist()

    def close(self) -> None:
        """Ends the background work."""
        self._iterator.close()

    def __enter__(self) -> "PretrainLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def evaluation_batches(
    prepared: PreparedCorpus,
    config: LoaderConfig,
    *,
    length: int,
    batch_size: int,
    max_predictions: int,
    seed: int,
    examples: int,
    host_index: int = 0,
    host_count: int = 1,
    table: TokenTable | None = None,
) -> Iterator[Batch]:
    """A pass over held-out text that is the same every time: the first batches of its epoch 0.

    There are as many whole batches as `examples` and the corpus have, both counted in rows that
    are not packed; at least one.

    Raises:
      ConfigError, UserError: as `PretrainLoader` does.
    """
    maker = BatchMaker(
        prepared,
        table or TokenTable.from_vocabulary(prepared.vocabulary()),
        config,
        length=length,
        batch_size=batch_size,
        max_predictions=max_predictions,
        seed=seed,
        host_index=host_index,
        host_count=host_count,
    )
    end = min(examples, maker.epoch_examples)
    position = 0
    while position == 0 or position + batch_size <= end:
        batch, position = maker.batch(position)
        yield batch


class _BatchNumber:
    """Batch number k after a start, with the position after it; meant to be asked in order."""

    def __init__(self, maker: BatchMaker, start: int) -> None:
        self._maker = maker
        self._start = start
        self._next = (0, start)

    def __call__(self, number: int) -> tuple[Batch, int]:
        at, position = self._next if self._next[0] <= number else (0, self._start)
        for _ in range(at, number):  # another worker makes these
            position += len(self._maker.plan(position)[1].rows)
        batch, position = self._maker.batch(position)
        self._next = (number + 1, position)
        return batch, position


def _prefetched(batch_number: _BatchNumber, config: LoaderConfig) -> Any:
    """Runs `batch_number` for 0, 1, 2, ... ahead of the consumer, in order."""
    import grain

    # One thread: its work holds the interpreter's lock, and batches follow from each other.
    ahead = grain.ReadOptions(num_threads=1, prefetch_buffer_size=config.prefetch_batches)
    dataset = grain.MapDataset.range(0, _ENDLESS).map(batch_number).to_iter_dataset(ahead)
    if config.workers:
        from absl import flags

        if not flags.FLAGS.is_parsed():  # grain's workers read flags, and nobody parses ours
            flags.FLAGS.mark_as_parsed()
        dataset = dataset.mp_prefetch(
            grain.MultiprocessingOptions(
                num_workers=config.workers, per_worker_buffer_size=config.prefetch_batches
            )
        )
    return iter(dataset)
