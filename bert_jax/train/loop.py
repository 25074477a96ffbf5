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
from bert_jax.train import hooks as hooks_lib
from bert_jax.train.config import Phase
from bert_jax.train.hooks import Hook, StepEvent
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
        self._spent, self._since = 0.0, time.monotonic()
        self.tokens, self.flops = 0, 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._spent + time.monotonic() - self._since

    def pause(self) -> None:
        """Stops the clock until `go`."""
        self._spent = self.seconds
        self._since = time.monotonic()

    def go(self) -> None:
        """Starts it again."""
        self._since = time.monotonic()

    def add(self, tokens: int, flops: float) -> None:
        """Counts one step."""
        self.tokens += tokens
        self.flops += flops


def train_phase(
    step: CompiledStep,
    state: State,
    loader: Loader,
    phase: Phase,
    *,
    name: str,
    done: int,
    until: int,
    total_steps: int,
    texts: int,
    flops: Callable[[int], float],
    put: Callable[[dict[str, np.ndarray]], dict[str, jax.Array]],
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
    for number in range(done + 1, until + 1):
        position = loader.position
        batch = next(batches)
        state, metrics = step(state, put(batch))
        length = contract.length(batch)
        meter.add(texts * length, flops(length))
        event = StepEvent(
            step=number,
            total_steps=total_steps,
            phase=name,
            position=position,
            batch_size=phase.batch_size,
            seconds=meter.seconds,
            tokens=meter.tokens,
            flops=meter.flops,
            device_metrics=metrics,
        )
        hooks_lib.call(hooks, event)
        after_step(number, state, loader.position)
    return state
