"""Defines hooks: objects that the training loop calls with an event every few steps.

A hook ends the run by raising. Hooks that write (progress, metrics, TensorBoard) exist on process 0
only. Hooks that may stop the run (`SpikeGuard`) exist on every process, so that all of them stop.
"""

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import jax

from bert_jax.errors import UserError
from bert_jax.objectives.multi_task import EXAMPLE_FRACTION


@dataclass(frozen=True, kw_only=True)
class StepEvent:
    """Describes one training step, which the device may not have finished yet.

    Attributes:
      step: number of updates done, including this one; 1 after the first.
      total_steps: the number of updates of the whole run.
      phase: name of the phase, for example "length-128".
      position: index of the first example of this step's batch in the run's order of examples.
      batch_size: examples in the batch, at positions `position` to `position + batch_size - 1`.
      clock: returns the training time of this process so far, without evaluations and saves.
      tokens: input positions of this process's run so far, padding included.
      flops: model FLOPs so far (forward and backward) by the analytic formula; 0 if unknown.
      device_metrics: scalars on the device. The property `metrics` copies them to the host on first
        use, so the host waits for the device only in steps whose metrics a hook reads.
    """

    step: int
    total_steps: int
    phase: str
    position: int
    batch_size: int
    clock: Callable[[], float]
    tokens: int
    device_metrics: Mapping[str, Any]
    flops: float = 0.0

    @cached_property
    def seconds(self) -> float:
        """Returns the training time up to the end of this step; waits for the device.

        Without the wait it would be the time when the step was dispatched, which may be many steps
        before it is computed. Read it while this is the newest step: later, the clock has moved on.
        """
        jax.block_until_ready(self.device_metrics)
        return self.clock()

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Returns the metrics as Python floats; waits for the device to finish the step."""
        return {name: float(value) for name, value in jax.device_get(self.device_metrics).items()}


class Hook(Protocol):
    """Defines a hook, which is called after every `every`-th step and after the last one."""

    @property
    def every(self) -> int:
        """Returns the number of steps between calls."""
        ...

    def __call__(self, event: StepEvent) -> None:
        """Handles one step; raising ends the run."""
        ...

    def close(self) -> None:
        """Frees resources; called once when the run ends, also after an error."""
        ...


def call_hooks(hooks: Sequence[Hook], event: StepEvent) -> None:
    """Calls the hooks that are due at this step, in order."""
    for hook in hooks:
        if event.step % hook.every == 0 or event.step == event.total_steps:
            hook(event)


class Throughput:
    """Measures throughput between events: steps and tokens per second, and MFU.

    Args:
      peak_flops: peak FLOP/s of all devices together; None: no MFU.
    """

    def __init__(self, peak_flops: float | None = None):
        self._peak_flops = peak_flops
        self._last: StepEvent | None = None

    def measure(self, event: StepEvent) -> dict[str, float]:
        """Returns the rates since the last call; {} at the first call."""
        last, self._last = self._last, event
        # The first event must read the clock now, too, and not at the second call.
        seconds = event.seconds - (last.seconds if last is not None else 0.0)
        if last is None or seconds <= 0 or event.step <= last.step:
            return {}
        rates = {
            "steps_per_second": (event.step - last.step) / seconds,
            "tokens_per_second": (event.tokens - last.tokens) / seconds,
        }
        if self._peak_flops and event.flops:
            rates["mfu"] = (event.flops - last.flops) / seconds / self._peak_flops
        return rates


class LimitInFlightSteps:
    """Limits how many dispatched steps the devices have not finished yet.

    JAX dispatches steps asynchronously. The limit keeps the host's step number close to the
    devices', so that progress and hang detection are accurate. It also avoids a hang of
    multi-process runs on CPU with about 30 queued programs (jaxlib 0.10.2).
    """

    every = 1

    def __init__(self, max_steps: int = 8):
        self._max_steps = max_steps
        self._in_flight: deque[Mapping[str, Any]] = deque()

    def __call__(self, event: StepEvent) -> None:
        """Waits until the step `max_steps` before this one is finished."""
        self._in_flight.append(event.device_metrics)
        if len(self._in_flight) > self._max_steps:
            jax.block_until_ready(self._in_flight.popleft())

    def close(self) -> None:
        """Does nothing."""


class TrainingHalted(UserError):
    """Reports that the loss diverged and training was stopped."""


def restart_advice(last_step: int | None) -> str:
    """Returns what to do after training diverged; `last_step` is the last valid checkpoint's."""
    remedy = "a lower learning rate, more warmup or stronger gradient clipping"
    if last_step is None:
        return f"no checkpoint was saved yet: run again with {remedy}"
    return (
        f"the last valid checkpoint is step {last_step}: start a new run from it (--init-from, in "
        f"another run folder) with {remedy}"
    )


SMALLEST_SPIKE = 0.5
"""No smaller loss stops a run: a cross-entropy of 0.5 is better than chance even for two classes
(0.69), and the losses of a model that has learned a few examples by heart are near zero, where they
vary by any factor from batch to batch."""
_FEWEST_LOSSES = 10
"""A mean over fewer says little: of 32 pairs of a contrastive loss, the first batch may have 0.006
and the others 0.1 to 1."""


def _losses_by_task(metrics: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Returns the fraction of the batch and the mean loss of each task that has examples in it.

    A run of one task has the name "".
    """
    suffix = f"/{EXAMPLE_FRACTION}"
    fractions = {
        name.removesuffix(suffix): value for name, value in metrics.items() if name.endswith(suffix)
    }
    if not fractions:
        return {"": (1.0, metrics["loss"])}
    return {
        task: (fraction, metrics[f"{task}/loss"])
        for task, fraction in fractions.items()
        if fraction > 0
    }


class SpikeGuard:
    """Stops the run when the loss is not finite or stays far above its running mean.

    A mean needs ten losses: the first ten checks, and those after a restart, only look for losses
    that are not finite. In a run of several tasks there is a mean for each task, of its own losses,
    and the means are weighted by the tasks' fractions of the batch: what a normal loss is depends
    on the tasks of the examples.

    Args:
      every: steps between checks; each check waits for the device.
      last_good_step: returns the step of the newest valid checkpoint, or None.
      factor: a check fails if the loss is above `factor` times the running mean, and above
        SMALLEST_SPIKE.
      patience: number of consecutive failed checks that stops the run. Of the small batches of a
        regression every tenth may fail a check, so three in a row would be found in a long run.
      window: number of checks that the mean is computed over.
    """

    def __init__(
        self,
        *,
        every: int,
        last_good_step: Callable[[], int | None],
        factor: float = 2.0,
        patience: int = 5,
        window: int = 50,
    ):
        self.every = every
        self._last_good_step = last_good_step
        self._factor, self._patience = factor, patience
        self._losses_of_task: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=window))
        self._new_checks: list[dict[str, float]] = []
        self._last_good_event: StepEvent | None = None

    def __call__(self, event: StepEvent) -> None:
        """Checks the loss of one step.

        Raises:
          TrainingHalted: the message names the step, the examples and the last valid checkpoint.
        """
        if not math.isfinite(event.metrics["loss"]):
            raise TrainingHalted(
                f"the loss is {event.metrics['loss']} {self._describe_event(event)}"
            )
        tasks, loss, mean = _losses_by_task(event.metrics), 0.0, 0.0
        for task, (fraction, task_loss) in tasks.items():
            loss += fraction * task_loss
            mean += fraction * self._usual_loss(task, task_loss)
        self._new_checks.append({task: task_loss for task, (_, task_loss) in tasks.items()})
        if loss <= max(self._factor * mean, SMALLEST_SPIKE):
            # Only now do the failed checks before count: if the loss had diverged, it would have
            # become the new mean. Without them, the mean of a noisy loss would fall and fall.
            for check in self._new_checks:
                for task, task_loss in check.items():
                    self._losses_of_task[task].append(task_loss)
            self._new_checks, self._last_good_event = [], event
        elif len(self._new_checks) >= self._patience:
            raise TrainingHalted(
                f"the loss is {loss:.4g}, above {self._factor:g} times its running mean "
                f"{mean:.4g} in {len(self._new_checks)} consecutive checks, "
                f"{self._describe_event(event)}"
            )

    def close(self) -> None:
        """Does nothing."""

    def _usual_loss(self, task: str, default: float) -> float:
        losses = self._losses_of_task[task]
        if len(losses) < _FEWEST_LOSSES:
            return default
        # One outlier must not hide a divergence after it, so it counts as twice the limit at most.
        largest = 2 * self._factor * statistics.median(losses)
        return statistics.fmean(min(loss, largest) for loss in losses)

    def _describe_event(self, event: StepEvent) -> str:
        last_example = event.position + event.batch_size - 1
        text = f"at step {event.step} (examples {event.position} to {last_example}); "
        if self._last_good_event is not None:
            text += (
                f"the last normal loss was at step {self._last_good_event.step} (examples up to "
            )
            text += f"{self._last_good_event.position + self._last_good_event.batch_size - 1}); "
        return text + restart_advice(self._last_good_step())
