"""Runs models on padded batches of few shapes, because every new shape costs a compilation.

Offline, `padded_batches` and `compute_in_order` group sequences by length and compile a program
when it is first used. A server uses an `Engine`, which compiles the programs of its `Buckets` and
pads a batch to the shape of one of them. While that one is not compiled, the batch is computed in
parts, or padded further to `common_length`.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np

from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.loader import evaluation_batches, gather_outputs
from bert_jax.errors import UserError
from bert_jax.pretrained.load import LoadedModel
from bert_jax.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MIN_LENGTH = 16
_COMMON_LENGTH = 128
"""Most texts have fewer tokens, and so few cost little time."""
TOKENS_PER_BATCH = 4096
_MANY_TOKENS = 16 * TOKENS_PER_BATCH
"""Number of tokens from which less padding saves more time than further compilations cost."""
Arrays = dict[str, np.ndarray]
_Compute = Callable[[Any, Mapping[str, jax.Array]], Mapping[str, jax.Array]]


def params_to_device(model: LoadedModel, parts: Iterable[str]) -> dict[str, Any]:
    """Copies the parameters of some parts of a model, such as "encoder", to the device."""
    return {part: jax.device_put(model.params[part]) for part in parts}


def encode_texts(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> list[list[int]]:
    """Tokenizes each text with special tokens, without truncation.

    Raises:
      UserError: the model reads too few tokens for any text.
    """
    if max_length < 3:
        raise UserError(
            f"this model reads at most {max_length} tokens; expected at least 3, for a token of "
            "text between [CLS] and [SEP]"
        )
    encodings = tokenizer.encode_batch(texts)
    return [tokenizer.build_inputs_with_special_tokens(e.ids).tolist() for e in encodings]


def next_power_of_two(number: int) -> int:
    """Returns the smallest power of two that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()


def padded_batches(
    sequences: Sequence[Sequence[int]], *, pad_id: int, max_length: int, num_shards: int = 1
) -> Iterator[tuple[list[int], Arrays]]:
    """Groups token ids of similar length into padded batches.

    Lengths are padded to 16, 32, 64, ..., at most `max_length`. From `_MANY_TOKENS` tokens on,
    lengths over 64 are padded to eighths of the next power of two: 80, 96, 112, 128, 160, ... Each
    shard has 1, 2, 4, ... rows, or as many as a full batch.

    Args:
      sequences: token ids of each text with special tokens, at most `max_length` each.
      pad_id: the token id of padding.
      max_length: number of positions of the model.
      num_shards: number of devices over which the rows of a batch are spread evenly.

    Yields:
      (indices into `sequences`, batch): the encoder's fields, int32 [B, L]. Rows after the last
      index are padding.
    """
    # Sorted by length, so that a batch has little padding; the caller gets its order back.
    remaining = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
    has_many_lengths = sum(map(len, sequences)) >= _MANY_TOKENS
    while remaining:
        longest = len(sequences[remaining[-1]])
        length = max(next_power_of_two(longest), MIN_LENGTH)
        if has_many_lengths and length > 64:
            step = length // 8
            length = -(-longest // step) * step
        length = min(length, max_length)
        shard_size = max(TOKENS_PER_BATCH // length, 1)
        batch_size = shard_size * num_shards
        # Longest first: the largest buffers are allocated at the start.
        batch_indices, remaining = remaining[-batch_size:], remaining[:-batch_size]
        shard_rows = next_power_of_two(-(-len(batch_indices) // num_shards))
        num_rows = min(shard_rows, shard_size) * num_shards
        batch_sequences = [sequences[index] for index in batch_indices]
        yield batch_indices, _pad(batch_sequences, pad_id, (num_rows, length))


def _pad(
    sequences: Sequence[Sequence[int] | np.ndarray], pad_id: int, shape: tuple[int, int]
) -> Arrays:
    ids, mask = np.full(shape, pad_id, np.int32), np.zeros(shape, np.int32)
    for index, sequence in enumerate(sequences):
        ids[index, : len(sequence)] = sequence
        mask[index, : len(sequence)] = 1
    mask[len(sequences) :, 0] = 1  # a softmax over no tokens is undefined
    return {"input_ids": ids, "token_type_ids": np.zeros(shape, np.int32), "attention_mask": mask}


def compute_in_order(
    batches: Iterable[tuple[Sequence[int] | np.ndarray, Arrays]],
    compute: Callable[[Arrays], Mapping[str, Any]],
    num_sequences: int,
    on_batch: Callable[[Sequence[int] | np.ndarray], object] = lambda indices: None,
) -> dict[str, list[np.ndarray]]:
    """Computes batches, and returns the outputs in the order of the sequences.

    Args:
      batches: (indices of the sequences, batch whose first rows are these sequences).
      compute: returns outputs by name, with one row for each row of a batch.
      on_batch: called after each batch with its indices.

    Returns:
      Output name -> one array for each sequence; {} if there is none.
    """

    def outputs() -> Iterator[tuple[Any, Mapping[str, np.ndarray]]]:
        for indices, batch in batches:
            yield indices, jax.device_get(compute(batch))
            on_batch(indices)

    return gather_outputs(outputs(), num_sequences)


def compute_features(
    features: Features,
    compute: Callable[[Arrays], Mapping[str, Any]],
    fields: Sequence[str],
    *,
    bucket_lengths: Sequence[int],
    batch_size: int,
    pad_id: int,
    on_batch: Callable[[Any], object] = lambda indices: None,
) -> dict[str, list[np.ndarray]]:
    """Computes the outputs of a head for each sequence of `features`, in their order.

    The batches are those of evaluation in training, so that both compute the same; few sequences
    get a batch that they fill.

    Args:
      fields: the fields of a batch that `compute` reads.
      on_batch: as for `compute_in_order`.
    """
    batches = evaluation_batches(
        features,
        bucket_lengths,
        batch_size=min(batch_size, next_power_of_two(len(features))),
        pad_id=pad_id,
    )
    inputs = ((indices, {name: batch[name] for name in fields}) for indices, batch in batches)
    return compute_in_order(inputs, compute, len(features), on_batch)


@dataclass(frozen=True, kw_only=True)
class TokenSequence:
    """Holds one row of a future batch.

    Attributes:
      input_ids: int32 [length] with special tokens.
      token_type_ids: int32 [length].
      extra: further fields of the batch, which have the same shape for all sequences.
      outputs: the outputs of the engine that the caller needs.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    extra: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    outputs: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.input_ids)


class Backend(Protocol):
    """Computes the outputs of a padded batch on one thread; another may compile meanwhile."""

    def compile(self, batch: Arrays) -> None:
        """Prepares for batches of these shapes."""
        ...

    def __call__(self, batch: Arrays) -> Mapping[str, Any]:
        """Returns the outputs by name, arrays with one row for each row of the batch."""
        ...


class JaxBackend:
    """Runs a pure function of parameters and a batch, compiled ahead of time for each shape."""

    def __init__(self, compute: _Compute, params: Any):
        """Copies the parameters to the device."""
        self._params = jax.device_put(params)
        # Programs are looked up by shape in a dict: calling the jitted function would compile a
        # new shape in the middle of a request.
        self._jitted = jax.jit(compute)
        self._programs: dict[tuple[int, ...], Any] = {}

    def compile(self, batch: Arrays) -> None:
        """Compiles the program for the shape of a batch, unless there is one."""
        shape = batch["input_ids"].shape
        if shape in self._programs:
            return
        program = self._jitted.lower(self._params, batch).compile()
        # XLA finishes a program when it first runs, which took 160 ms on a CPU.
        jax.block_until_ready(program(self._params, batch))
        self._programs[shape] = program

    def __call__(self, batch: Arrays) -> Mapping[str, Any]:
        """Runs the program of the batch's shape; KeyError if it was not compiled."""
        return self._programs[batch["input_ids"].shape](self._params, batch)


@dataclass(frozen=True)
class Buckets:
    """Lists the shapes of batches: lengths 16, 32, ... `max_length`, and 1, 2, 4, ... rows."""

    max_length: int
    max_tokens: int
    max_rows: int

    def lengths(self) -> list[int]:
        """Returns the lengths, ascending."""
        lengths = [MIN_LENGTH]
        while lengths[-1] < self.max_length:
            lengths.append(lengths[-1] * 2)
        return [min(length, self.max_length) for length in lengths]

    def length_for(self, num_tokens: int) -> int:
        """Returns the shortest length that holds a sequence."""
        return min(max(next_power_of_two(num_tokens), MIN_LENGTH), self.max_length)

    def max_rows_for(self, length: int) -> int:
        """Returns the maximum number of rows of this length: a power of two, at least 1."""
        rows = min(max(self.max_tokens // length, 1), self.max_rows)
        return 1 << (rows.bit_length() - 1)

    @property
    def common_length(self) -> int:
        """Returns the length whose program also computes shorter rows that have none yet."""
        return min(_COMMON_LENGTH, self.max_length)

    def shapes(self) -> list[tuple[int, int]]:
        """Returns (rows, length) of every batch, the largest first."""
        return [
            (1 << power, length)
            for length in reversed(self.lengths())
            for power in reversed(range(self.max_rows_for(length).bit_length()))
        ]


class Engine:
    """Runs batches of token sequences on a backend.

    Attributes:
      name: the model and what is computed, for messages.
      buckets: the shapes of batches.
      backend: computes a padded batch.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        buckets: Buckets,
        *,
        pad_id: int,
        extra: Mapping[str, np.ndarray] | None = None,
    ):
        """Makes an engine; nothing is compiled yet.

        Args:
          pad_id: the token id of padding.
          extra: for each further field of the batch, the value in rows of padding.
        """
        self.name, self.buckets, self.backend = name, buckets, backend
        self._pad_id, self._extra = pad_id, dict(extra or {})
        self._compiled: frozenset[tuple[int, int]] = frozenset()
        self._failures: dict[tuple[int, int], Exception] = {}
        self._lock = threading.Lock()

    @property
    def num_compiled(self) -> int:
        """Returns the number of shapes whose programs are compiled."""
        return len(self._compiled)

    def compile_all(
        self,
        is_stopping: Callable[[], bool] = lambda: False,
        *,
        shapes: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """Compiles the programs of all shapes; stops before the next if `is_stopping()`.

        Args:
          shapes: those to compile; None: all, the largest first, so that a lack of memory shows
            before requests are answered.
        """
        start = time.perf_counter()
        shapes = self.buckets.shapes() if shapes is None else shapes
        for shape in shapes:
            if is_stopping():
                return
            self.compile(shape)
        seconds, number = time.perf_counter() - start, len(shapes)
        noun = "program" if number == 1 else "programs"
        logger.info("compiled %d %s of %s in %.1f s", number, noun, self.name, seconds)

    def compile(self, shape: tuple[int, int]) -> None:
        """Compiles the program for (rows, length); another thread may run batches meanwhile.

        What cannot be compiled is not tried again: the same error is raised at once.
        """
        with self._lock:  # no program is compiled twice
            if shape in self._failures:
                raise self._failures[shape]
            if shape not in self._compiled:
                try:
                    self.backend.compile(self._pad([], *shape))
                except Exception as error:
                    self._failures[shape] = error
                    raise
                self._compiled |= {shape}

    def has_program(self, rows: int, length: int) -> bool:
        """Returns whether the program for (rows, length) is compiled."""
        return (rows, length) in self._compiled

    def computes_at_once(self, length: int) -> bool:
        """Returns whether `run` compiles nothing for sequences of a padded length, or fails."""
        return (1, length) in self._failures or bool(self._usable_shapes(1, length))

    def _usable_shapes(self, rows: int, length: int) -> list[tuple[int, int]]:
        """Returns the compiled shapes that compute up to `rows` sequences of a padded length."""
        return [
            (other_rows, other)
            for other_rows, other in self._compiled
            if other_rows <= rows and other in (length, max(length, self.buckets.common_length))
        ]

    def run(self, sequences: Sequence[TokenSequence]) -> list[Arrays]:
        """Computes a batch: at most `max_rows_for` sequences of the longest one's length.

        If the program of its shape is not compiled yet, it is computed in parts that have one, with
        padding up to `common_length` if needed; if no part has, that for one sequence is compiled.

        Returns:
          For each sequence the outputs that it names; positions after its length are padding.
        """
        length = self.buckets.length_for(max(map(len, sequences)))
        rows = next_power_of_two(len(sequences))
        usable = self._usable_shapes(rows, length)
        if not usable:
            self.compile((1, length))
            usable = [(1, length)]
        # The shortest length with a program, and the most rows of those.
        size, length = min(usable, key=lambda shape: (shape[1], -shape[0]))
        return [
            outputs
            for begin in range(0, len(sequences), size)
            for outputs in self._run(sequences[begin : begin + size], size, length)
        ]

    def _run(self, sequences: Sequence[TokenSequence], rows: int, length: int) -> list[Arrays]:
        outputs = self.backend(self._pad(sequences, rows, length))
        names = {name for sequence in sequences for name in sequence.outputs}
        # Only what some sequence needs is copied from the device.
        arrays = {name: np.asarray(outputs[name]) for name in names}
        return [
            {name: arrays[name][row] for name in sequence.outputs}
            for row, sequence in enumerate(sequences)
        ]

    def _pad(self, sequences: Sequence[TokenSequence], rows: int, length: int) -> Arrays:
        ids = [sequence.input_ids for sequence in sequences]
        batch = _pad(ids, self._pad_id, (rows, length))
        batch |= {name: np.stack([value] * rows) for name, value in self._extra.items()}
        for row, sequence in enumerate(sequences):
            batch["token_type_ids"][row, : len(sequence)] = sequence.token_type_ids
            for name, value in sequence.extra.items():
                batch[name][row] = value
        return batch
