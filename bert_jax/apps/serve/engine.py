"""Runs a network on padded batches, with one program compiled for each shape of a batch.

All programs are compiled before the server is ready, and no other is compiled afterwards: a batch
is padded to the next length and number of rows that have a program.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np

from bert_jax.predict.batching import MIN_LENGTH, next_power_of_two

logger = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray]
Compute = Callable[[Any, Mapping[str, jax.Array]], Mapping[str, jax.Array]]


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
    """Computes the outputs of a padded batch; called by one thread only."""

    def compile(self, batch: Arrays) -> None:
        """Prepares for batches of these shapes."""
        ...

    def __call__(self, batch: Arrays) -> Mapping[str, Any]:
        """Returns the outputs by name, arrays with one row for each row of the batch."""
        ...


class JaxBackend:
    """Runs a pure function of parameters and a batch, compiled ahead of time for each shape."""

    def __init__(self, compute: Compute, params: Any):
        """Copies the parameters to the device."""
        self._params = jax.device_put(params)
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

    def compile_all(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Compiles the programs of all shapes; stops before the next if `is_stopping()`."""
        start, shapes = time.perf_counter(), self.buckets.shapes()
        for rows, length in shapes:
            if is_stopping():
                return
            self.backend.compile(self._pad([], rows, length))
        seconds = time.perf_counter() - start
        logger.info("compiled %d programs of %s in %.1f s", len(shapes), self.name, seconds)

    def run(self, sequences: Sequence[TokenSequence]) -> list[Arrays]:
        """Computes a batch: at most `max_rows_for` sequences of the longest one's length.

        Returns:
          For each sequence the outputs that it names; positions after its length are padding.
        """
        length = self.buckets.length_for(max(map(len, sequences)))
        batch = self._pad(sequences, next_power_of_two(len(sequences)), length)
        outputs = self.backend(batch)
        names = {name for sequence in sequences for name in sequence.outputs}
        # Only what some sequence needs is copied from the device.
        arrays = {name: np.asarray(outputs[name]) for name in names}
        return [
            {name: arrays[name][row] for name in sequence.outputs}
            for row, sequence in enumerate(sequences)
        ]

    def _pad(self, sequences: Sequence[TokenSequence], rows: int, length: int) -> Arrays:
        ids = np.full((rows, length), self._pad_id, np.int32)
        types, mask = np.zeros_like(ids), np.zeros_like(ids)
        mask[len(sequences) :, 0] = 1  # a softmax over no tokens is undefined
        extra = {name: np.stack([value] * rows) for name, value in self._extra.items()}
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = sequence.input_ids
            types[row, : len(sequence)] = sequence.token_type_ids
            mask[row, : len(sequence)] = 1
            for name, value in sequence.extra.items():
                extra[name][row] = value
        return {"input_ids": ids, "token_type_ids": types, "attention_mask": mask, **extra}
