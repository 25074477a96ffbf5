"""The batch at a position: a function of corpus, settings, seed and position alone.

Global example i (0, 1, 2, ... without end) is example `permute(i mod E)` of epoch i div E, where E
is the number of examples in an epoch. A batch holds consecutive global examples from its position
on: as many as it has rows, or, packed, as many as fit. Hosts take contiguous slices of the rows.
"""

from typing import Any, NamedTuple

import numpy as np

from bert_jax.batch import ENCODER_FIELDS, MASKED_LM_FIELDS, NEXT_SENTENCE_FIELDS, PACKED_FIELDS
from bert_jax.data.config import LoaderConfig, Packed, Pairs, Static
from bert_jax.data.examples import PairExamples, SingleExamples
from bert_jax.data.masking import mask_rows
from bert_jax.data.packing import Plan, packed_rows, plan
from bert_jax.data.pairs import PAIR_SPECIALS, pair_rows, single_rows
from bert_jax.data.prepared import PreparedCorpus
from bert_jax.data.random import epoch_key, example_keys, permute
from bert_jax.data.token_table import TokenTable
from bert_jax.errors import ConfigError

Batch = dict[str, np.ndarray]


class Examples(NamedTuple):
    """Global examples: their number within the epoch, document, and key, [n] each."""

    examples: np.ndarray
    documents: np.ndarray
    keys: np.ndarray


def batch_fields(config: LoaderConfig) -> tuple[str, ...]:
    """The fields of the batches that a config makes, in the names of batch.py."""
    names = ENCODER_FIELDS
    if isinstance(config.examples, Packed):
        names += PACKED_FIELDS
    if config.masking is not None:
        names += MASKED_LM_FIELDS
    if isinstance(config.examples, Pairs):
        names += NEXT_SENTENCE_FIELDS
    return names


class BatchMaker:
    """Makes the batch that begins at a position. Holds no state; travels to worker processes.

    length, batch_size and max_predictions are L, global B and P; hosts share out the rows.

    Raises:
      ConfigError: sizes that cannot be.
      UserError: a corpus of one document where pairs are wanted.
    """

    def __init__(
        self,
        corpus: PreparedCorpus,
        table: TokenTable,
        config: LoaderConfig,
        *,
        length: int,
        batch_size: int,
        max_predictions: int,
        seed: int,
        host_index: int = 0,
        host_count: int = 1,
    ) -> None:
        _check_sizes(length, batch_size, max_predictions, host_index, host_count)
        self.config = config
        self.batch_size = batch_size
        self.source: PairExamples | SingleExamples
        if isinstance(config.examples, Pairs):
            self.source = PairExamples(corpus, config.examples, length)
        else:
            self.source = SingleExamples(corpus, length)
        self.table = table
        self.length = length
        self.max_predictions = max_predictions
        self._seed = seed
        rows = batch_size // host_count
        self._host_rows = (host_index * rows, (host_index + 1) * rows)

    @property
    def epoch_examples(self) -> int:
        """E, the number of examples in an epoch."""
        return self.source.count

    def examples(self, position: int, count: int) -> Examples:
        """Resolves global examples [position, position + count)."""
        order = np.arange(position, position + count)
        epochs = order // self.epoch_examples
        examples = np.empty(count, dtype=np.int64)
        epoch_keys = np.empty(count, dtype=np.uint64)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            within = order[here] - epoch * self.epoch_examples
            key = epoch_key(self._seed, epoch)
            examples[here] = permute(within, self.epoch_examples, key)
            if isinstance(self.config.draws, Static):
                key = epoch_key(self._seed, epoch % self.config.draws.duplicates)
            epoch_keys[here] = key
        documents = self.source.documents(examples)
        return Examples(examples, documents, example_keys(epoch_keys, examples))

    def plan(self, position: int) -> tuple[Examples, Plan]:
        """The global examples of the batch at a position, and the rows that they go to."""
        source = self.source
        if not (isinstance(source, SingleExamples) and isinstance(self.config.examples, Packed)):
            rows = np.arange(self.batch_size)
            return self.examples(position, self.batch_size), Plan(rows, np.zeros_like(rows))
        count = self.batch_size
        while True:
            found = self.examples(position, count)
            lengths = source.lengths(found.documents)
            if lengths.sum() > self.batch_size * self.length:
                break
            count *= 2
        placed = plan(lengths, self.batch_size, self.length)
        return Examples(*(column[: len(placed.rows)] for column in found)), placed

    def batch(self, position: int) -> tuple[Batch, int]:
        """This host's rows of the batch that begins at a position, and the position after it."""
        found, placed = self.plan(position)
        begin, end = self._host_rows
        mine = (placed.rows >= begin) & (placed.rows < end)
        rows = self._rows(
            Examples(*(column[mine] for column in found)),
            Plan(placed.rows[mine] - begin, placed.offsets[mine]),
        )
        return rows, position + len(placed.rows)

    def _rows(self, found: Examples, placed: Plan) -> Batch:
        numbers = (column.tolist() for column in found)
        made: Any = [self.source.read(*example) for example in zip(*numbers, strict=True)]
        token_keys = found.keys
        if isinstance(self.config.examples, Packed):
            shape = (self._host_rows[1] - self._host_rows[0], self.length)
            rows, token_keys = packed_rows(made, found.keys, placed, shape, self.table)
        elif isinstance(self.config.examples, Pairs):
            rows = pair_rows(made, self.length, self.table)
        else:
            rows = single_rows(made, self.length, self.table)
        if self.config.masking is not None:
            rows |= mask_rows(
                rows["input_ids"],
                rows["attention_mask"],
                token_keys,
                self.config.masking,
                self.max_predictions,
                self.table,
                rows.get("position_ids"),
            )
        return rows


def _check_sizes(
    length: int, batch_size: int, max_predictions: int, host_index: int, host_count: int
) -> None:
    if not PAIR_SPECIALS + 2 <= length <= 1 << 16:
        raise ConfigError(f"length is {length}, expected {PAIR_SPECIALS + 2} to {1 << 16}")
    if not 1 <= max_predictions <= length:
        raise ConfigError(f"max_predictions is {max_predictions}, expected 1 to length {length}")
    if batch_size < 1 or batch_size % host_count:
        raise ConfigError(
            f"a batch of {batch_size} rows cannot be shared evenly by {host_count} hosts"
        )
    if not 0 <= host_index < host_count:
        raise ConfigError(f"host_index is {host_index}, expected 0 to {host_count - 1}")
