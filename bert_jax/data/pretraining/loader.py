"""The training loader: batches in an order that one integer describes.

`PretrainLoader.position` is the number of global examples consumed by the batches handed out so
far; a loader started there goes on with the same batches, whatever the number of hosts, workers
or prefetched batches then is (see batches.py). Reads with grain; imports no TensorFlow.
"""

from collections.abc import Iterator
from typing import Any

from bert_jax.data.config import PretrainingData
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.batch_builder import Batch, BatchBuilder
from bert_jax.data.pretraining.vocab_arrays import VocabArrays

# grain wants a length: more batches than will ever be asked for.
_UNBOUNDED_LENGTH = 1 << 62


class PretrainingLoader:
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
        corpus: PreparedCorpus,
        config: PretrainingData,
        *,
        seq_length: int,
        batch_size: int,
        max_predictions_per_seq: int,
        seed: int,
        process_index: int = 0,
        process_count: int = 1,
        start: int = 0,
        vocab_arrays: VocabArrays | None = None,
    ) -> None:
        self._corpus = corpus
        self.batch_builder = BatchBuilder(
            corpus,
            vocab_arrays or VocabArrays.from_tokenizer(corpus.tokenizer()),
            config,
            seq_length=seq_length,
            batch_size=batch_size,
            max_predictions_per_seq=max_predictions_per_seq,
            seed=seed,
            process_index=process_index,
            process_count=process_count,
        )
        self._position = start
        self._iterator = _prefetch(_IndexedBatches(self.batch_builder, start), config)

    @property
    def position(self) -> int:
        """Global examples consumed by the batches handed out so far."""
        return self._position

    @property
    def epoch(self) -> float:
        """Epochs consumed so far."""
        return self._position / self.batch_builder.examples_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch, self._position = next(self._iterator)
        return batch

    def example_indices(self, position: int) -> range:
        """The global examples in the batch that begins at `position`."""
        refs, _ = self.batch_builder.plan_batch(position)
        return range(position, position + len(refs.example_indices))

    def example_documents(self, position: int) -> list[int]:
        """The documents, numbered over the whole corpus, of the batch that begins there."""
        refs, _ = self.batch_builder.plan_batch(position)
        return refs.document_indices.tolist()

    def close(self) -> None:
        """Ends the background work."""
        self._iterator.close()

    def __enter__(self) -> "PretrainingLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def evaluation_batches(
    corpus: PreparedCorpus,
    config: PretrainingData,
    *,
    seq_length: int,
    batch_size: int,
    max_predictions_per_seq: int,
    seed: int,
    num_examples: int,
    process_index: int = 0,
    process_count: int = 1,
    vocab_arrays: VocabArrays | None = None,
) -> Iterator[Batch]:
    """A pass over held-out text that is the same every time: the first batches of its epoch 0.

    There are as many whole batches as `examples` and the corpus have, both counted in rows that
    are not packed; at least one.

    Raises:
      ConfigError, UserError: as `PretrainLoader` does.
    """
    batch_builder = BatchBuilder(
        corpus,
        vocab_arrays or VocabArrays.from_tokenizer(corpus.tokenizer()),
        config,
        seq_length=seq_length,
        batch_size=batch_size,
        max_predictions_per_seq=max_predictions_per_seq,
        seed=seed,
        process_index=process_index,
        process_count=process_count,
    )
    end = min(num_examples, batch_builder.examples_per_epoch)
    position = 0
    while position == 0 or position + batch_size <= end:
        batch, position = batch_builder.build_batch(position)
        yield batch


class _IndexedBatches:
    """Batch number k after a start, with the position after it; meant to be asked in order."""

    def __init__(self, batch_builder: BatchBuilder, start: int) -> None:
        self._batch_builder = batch_builder
        self._start = start
        self._next_index_and_position = (0, start)

    def __call__(self, batch_index: int) -> tuple[Batch, int]:
        first_index, position = (
            self._next_index_and_position
            if self._next_index_and_position[0] <= batch_index
            else (0, self._start)
        )
        for _ in range(first_index, batch_index):  # another worker makes these
            position += len(self._batch_builder.plan_batch(position)[1].rows)
        batch, position = self._batch_builder.build_batch(position)
        self._next_index_and_position = (batch_index + 1, position)
        return batch, position


def _prefetch(indexed_batches: _IndexedBatches, config: PretrainingData) -> Any:
    """Runs `batch_number` for 0, 1, 2, ... ahead of the consumer, in order."""
    import grain

    # One thread: its work holds the interpreter's lock, and batches follow from each other.
    read_options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=config.prefetch_batches)
    dataset = (
        grain.MapDataset.range(0, _UNBOUNDED_LENGTH)
        .map(indexed_batches)
        .to_iter_dataset(read_options)
    )
    if config.num_workers:
        from absl import flags

        if not flags.FLAGS.is_parsed():  # grain's workers read flags, and nobody parses ours
            flags.FLAGS.mark_as_parsed()
        dataset = dataset.mp_prefetch(
            grain.MultiprocessingOptions(
                num_workers=config.num_workers, per_worker_buffer_size=config.prefetch_batches
            )
        )
    return iter(dataset)
