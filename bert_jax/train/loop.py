"""The loop. The order of operations at each step is fixed, and stated here once:

    batch -> step -> hooks -> evaluate -> save -> leave if asked to

A checkpoint made after step t holds the state after t updates and the position of the example that
comes next, so a resumed run is the run that was never stopped.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import jax
import numpy as np

from bert_jax import batch as contract
from bert_jax.runs import hooks as hooks_lib
from bert_jax.runs.hooks import Hook, StepEvent
from bert_jax.train.config import Phase
from bert_jax.train.step import State

CompiledStep = Callable[[State, dict[str, jax.Array]], tuple[State, dict[str, jax.Array]]]


class Loader(Protocol):
    """Batches without end, and where the next one begins."""

    @property
    def position(self) -> int:
        """Of the first example in the next batch."""
        ...

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]: ...


class Meter:
    """What this process has spent on training, evaluation and saving left out.

    Attributes:
      tokens: input positions, padding included.
      flops: model FLOPs, by the analytic formula.
    """

    def __init__(self) -> None:
        self._elapsed, self._resumed_at = 0.0, time.monotonic()
        self.tokens, self.flops = 0, 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._elapsed + time.monotonic() - self._resumed_at

    def pause(self) -> None:
        """Stops the clock until `go`."""
        self._elapsed = self.seconds
        self._resumed_at = time.monotonic()

    def resume(self) -> None:
        """Starts it again."""
        self._resumed_at = time.monotonic()

    def add(self, tokens: int, flops: float) -> None:
        """Counts one step."""
        self.tokens += tokens
        self.flops += flops


def train_phase(
    compiled_step: CompiledStep,
    state: State,
    loader: Loader,
    phase: Phase,
    *,
    phase_name: str,
    start_step: int,
    last_step: int,
    total_steps: int,
    sequences_per_batch: int,
    step_flops: Callable[[int], float],
    to_device: Callable[[dict[str, np.ndarray]], dict[str, jax.Array]],
    hooks: Sequence[Hook],
    meter: Meter,
    after_step: Callable[[int, State, int], None],
) -> State:
    """Runs updates done + 1 .. until.

    Args:
      texts: of a batch: its rows, times the choices in each.
      flops: model FLOPs of one step at a batch's length.
      put: moves a host's batch to the devices.
      after_step: called with (updates done, state, position of the next example) after the hooks;
        evaluates and saves where due. Whatever it raises ends the loop.
    """
    batches = iter(loader)
    for step_number in range(start_step + 1, last_step + 1):
        position = loader.position
        batch = next(batches)
        state, metrics = compiled_step(state, to_device(batch))
        seq_length = contract.sequence_length(batch)
        meter.add(sequences_per_batch * seq_length, step_flops(seq_length))
        event = StepEvent(
            step=step_number,
            total_steps=total_steps,
            phase=phase_name,
            position=position,
            batch_size=phase.batch_size,
            seconds=meter.seconds,
            tokens=meter.tokens,
            flops=meter.flops,
            device_metrics=metrics,
        )
        hooks_lib.call_hooks(hooks, event)
        after_step(step_number, state, loader.position)
    return state
