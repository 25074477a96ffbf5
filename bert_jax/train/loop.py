"""Runs the training loop of one phase, and finds the phases that are left to run.

Every step does the following, in this order:

    batch -> compiled step -> hooks (log, check the loss) -> state hooks (evaluate, save, stop)

A checkpoint saved after step t holds the state after t updates and the position of the next
training example. With the same config and devices, a resumed run therefore computes exactly
what an uninterrupted run computes.
"""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import jax
import numpy as np

from bert_jax import batch as batch_lib
from bert_jax.config.train import Phase, TrainConfig
from bert_jax.parallel.processes import barrier
from bert_jax.runs import hooks as hooks_lib
from bert_jax.runs.hooks import Hook, StepEvent
from bert_jax.train.step import CompiledStep, State
from bert_jax.train.watchdog import Watchdog

StopReason = Literal["preempted", "early_stopping"]


class Loader(Protocol):
    """Iterates over training batches without end."""

    @property
    def position(self) -> int:
        """Returns the position of the first example of the next batch."""
        ...

    @property
    def examples_per_epoch(self) -> int:
        """Returns the number of examples in one pass over the data."""
        ...

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]: ...


class StateHook(Protocol):
    """Does something with the state after a step, such as evaluating or saving it.

    Unlike the hooks of `bert_jax.runs.hooks`, a state hook receives the state, is called after
    every step, and can end the loop.
    """

    def __call__(self, step: int, state: State, position: int) -> StopReason | None:
        """Handles the state after `step` updates.

        Args:
          position: position of the next training example.

        Returns:
          The reason to end the loop after this step; None to continue.
        """
        ...


class TrainingMeter:
    """Counts the training time, tokens and FLOPs of this process.

    Args:
      watchdog: paused together with the clock; None for a meter without a watchdog.

    Attributes:
      tokens: input positions so far, padding included.
      flops: model FLOPs so far, by the analytic formula.
    """

    def __init__(self, watchdog: Watchdog | None = None) -> None:
        self._watchdog = watchdog
        self._elapsed, self._resumed_at = 0.0, time.monotonic()
        self._pauses: dict[str, list[float]] = {}
        self.tokens, self.flops = 0, 0.0

    @property
    def seconds(self) -> float:
        """Returns the seconds of training so far, without the paused ones."""
        return self._elapsed + time.monotonic() - self._resumed_at

    @contextlib.contextmanager
    def paused(self, activity: str | None = None, step: int = 0) -> Generator[None]:
        """Excludes the time spent inside from the training time.

        Args:
          activity: what the watchdog monitors inside, such as "save"; None: it monitors nothing.
          step: the step that the watchdog names if `activity` hangs.
        """
        self._elapsed, paused_at = self.seconds, time.monotonic()
        with contextlib.ExitStack() as stack:
            if self._watchdog is not None:
                watchdog = self._watchdog
                stack.enter_context(
                    watchdog.watching(activity, step) if activity else watchdog.paused()
                )
            yield
        self._resumed_at = time.monotonic()
        self._pauses.setdefault(activity or "", []).append(self._resumed_at - paused_at)

    def mean_pause(self, activity: str) -> float:
        """Returns the mean seconds of the pauses for an activity so far; 0 before the first one.

        The first one compiles programs, so it counts only while it is the only one.
        """
        pauses = self._pauses.get(activity, [0.0])
        return statistics.fmean(pauses[1:] or pauses)

    def add(self, tokens: int, flops: float) -> None:
        """Adds the tokens and FLOPs of one step."""
        self.tokens += tokens
        self.flops += flops


def pause_seconds_left(train: TrainConfig, meter: TrainingMeter, step: int) -> float:
    """Estimates how many seconds the remaining evaluations and saves take, from those so far."""

    def num_after(every: int) -> int:
        # The last step counts as well, even if it is not a multiple.
        return train.steps // every - step // every + (train.steps % every > 0)

    num_saves = num_after(train.checkpoints.save_every)
    num_evaluations = num_after(train.evaluation.eval_every) if train.evaluation else 0
    if train.evaluation and train.checkpoints.best_metric:
        # Every evaluated step is saved as well; a step that is due for both is saved once.
        both_due = math.lcm(train.checkpoints.save_every, train.evaluation.eval_every)
        num_saves += num_evaluations - num_after(both_due)
    evaluate, save = meter.mean_pause("evaluate"), meter.mean_pause("save")
    return num_evaluations * evaluate + num_saves * save


@dataclass(frozen=True, kw_only=True)
class CompiledPhase:
    """Holds the compiled step of a phase and the numbers that the loop reports with it.

    Attributes:
      name: shown in metrics, for example "length-128".
      steps: the update numbers to run; the first update of a run is number 1.
      total_steps: updates of the whole run.
      batch_size: examples in a batch.
      tokens: length of a batch -> the positions that the encoder computes, padding included.
      flops: length of a batch -> the model FLOPs of its step.
      to_device: moves this process's part of a batch to its devices.
    """

    name: str
    compiled_step: CompiledStep
    steps: range
    total_steps: int
    batch_size: int
    tokens: Mapping[int, int]
    flops: Mapping[int, float]
    to_device: Callable[[dict[str, np.ndarray]], dict[str, jax.Array]]


def train_phase(
    phase: CompiledPhase,
    state: State,
    loader: Loader,
    hooks: Sequence[Hook],
    state_hooks: Sequence[StateHook],
    meter: TrainingMeter,
) -> tuple[State, StopReason | None]:
    """Runs the steps of one phase.

    Args:
      hooks: called with the event of a step, each at its own interval.
      state_hooks: called in order after `hooks`; the first one that returns a reason ends the loop.

    Returns:
      The state after the last step, and why the loop ended before the end of the phase, or None.
    """
    batches, compiled_step, prepared = iter(loader), phase.compiled_step, set[int]()
    for step in phase.steps:
        # Read before the batch is taken: the event is about the examples that this step trains
        # on.
        position = loader.position
        batch = next(batches)
        seq_length = batch_lib.sequence_length(batch)
        if seq_length not in prepared:
            jax.block_until_ready(state)  # steps in flight are training time
            with meter.paused():
                compiled_step.prepare(seq_length)
                barrier(f"the program for length {seq_length} of step {step}")
            prepared.add(seq_length)
        # JAX returns before the step has run, so host and devices work at the same time;
        # `LimitInFlightSteps` bounds how far the host runs ahead.
        state, metrics = compiled_step(state, phase.to_device(batch))
        meter.add(phase.tokens[seq_length], phase.flops[seq_length])
        event = StepEvent(
            step=step,
            total_steps=phase.total_steps,
            phase=phase.name,
            position=position,
            batch_size=phase.batch_size,
            clock=lambda: meter.seconds,
            tokens=meter.tokens,
            flops=meter.flops,
            device_metrics=metrics,
        )
        hooks_lib.call_hooks(hooks, event)
        for state_hook in state_hooks:
            stop_reason = state_hook(step, state, loader.position)
            if stop_reason is not None:
                return state, stop_reason
    return state, None


def remaining_phases(
    phases: Sequence[Phase], start_step: int, position: int
) -> Iterator[tuple[int, range, int]]:
    """Yields (phase index, step numbers to run, position to start at) for each unfinished phase.

    Args:
      start_step: number of updates done.
      position: position of the next training example of the current phase.
    """
    steps_before = 0
    for phase_index, phase in enumerate(phases):
        last_step = steps_before + phase.steps
        if start_step < last_step:
            steps = range(max(start_step, steps_before) + 1, last_step + 1)
            # The position of a checkpoint saved at the end of a phase belongs to that phase.
            yield phase_index, steps, position if start_step > steps_before else 0
        steps_before = last_step
