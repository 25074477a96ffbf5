"""What may watch the loop: a hook is called with an event every so many steps, and may raise.

The loop knows no hook by name. Hooks that write (progress, metrics, TensorBoard) are made on
process 0 only; hooks that may stop the run (`SpikeGuard`) on every process, so that all stop.
"""

import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import jax

from bert_jax.errors import UserError


@dataclass(frozen=True, kw_only=True)
class StepEvent:
    """One finished step, as hooks see it.

    Attributes:
      step: number of updates done, this one included; 1 after the first.
      total_steps: the number of updates of the whole run.
      phase: name of the phase, as "length-128".
      position: index of the first example of this step's batch in the run's order of examples.
      batch_size: examples in the batch; they are position .. position + batch_size - 1.
      seconds: time spent on training so far in this process, without evaluations and saves.
      tokens: input positions trained on so far in this process, padding included.
      flops: model FLOPs so far (forward and backward) by the analytic formula; 0 if unknown.
      device_metrics: scalars still on the device. `metrics` fetches them, once, when asked for:
        a step that no hook looks at never waits for the device.
    """

    step: int
    total_steps: int
    phase: str
    position: int
    batch_size: int
    seconds: float
    tokens: int
    device_metrics: Mapping[str, Any]
    flops: float = 0.0

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The step's metrics as Python floats; waits for the step to finish."""
        return {name: float(value) for name, value in jax.device_get(self.device_metrics).items()}


class Hook(Protocol):
    """Something called after every `every`-th step, and after the last one."""

    @property
    def every(self) -> int:
        """Steps from one call to the next."""
        ...

    def __call__(self, event: StepEvent) -> None:
        """Looks at one step. Raising ends the run."""
        ...

    def close(self) -> None:
        """Called once when the run ends, however it ends."""
        ...


def call_hooks(hooks: Sequence[Hook], event: StepEvent) -> None:
    """Calls, in order, the hooks that are due at this step."""
    for hook in hooks:
        if event.step % hook.every == 0 or event.step == event.total_steps:
            hook(event)


class Throughput:
    """Rates between one event and the next: tokens and steps each second, and MFU.

    Args:
      peak_flops: FLOP/s of all devices together; without it there is no MFU.
    """

    def __init__(self, peak_flops: float | None = None):
        self._peak_flops = peak_flops
        self._last: StepEvent | None = None

    def measure(self, event: StepEvent) -> dict[str, float]:
        """Rates since the last call; empty at the first, which has the compilation in it."""
        last, self._last = self._last, event
        if last is None or event.seconds <= last.seconds or event.step <= last.step:
            return {}
        seconds = event.seconds - last.seconds
        rates = {
            "steps_per_second": (event.step - last.step) / seconds,
            "tokens_per_second": (event.tokens - last.tokens) / seconds,
        }
        if self._peak_flops and event.flops:
            rates["mfu"] = (event.flops - last.flops) / seconds / self._peak_flops
        return rates


class LimitInFlightSteps:
    """Keeps the host at most `ahead` steps before the devices.

    What the loop is at is then what the devices are at, for whoever watches it; and CPU devices
    of several processes hang when some thirty programs wait in line (jaxlib 0.10.2).
    """

    every = 1

    def __init__(self, max_steps: int = 8):
        self._max_steps = max_steps
        self._in_flight: deque[Mapping[str, Any]] = deque()

    def __call__(self, event: StepEvent) -> None:
        """Waits for the step that was `ahead` steps before this one."""
        self._in_flight.append(event.device_metrics)
        if len(self._in_flight) > self._max_steps:
            jax.block_until_ready(self._in_flight.popleft())

    def close(self) -> None:
        """Nothing to free."""


class TrainingHalted(UserError):
    """The loss left the rails; going on would only train on the damage."""


class SpikeGuard:
    """Stops the run when the loss is not finite, or stays far above what it was.

    Args:
      every: steps from one look to the next; each look waits for the device.
      last_good: gives the step of the last checkpoint on disk, or None.
      factor: a look is bad when the loss is above `factor` times the running median.
      patience: this many bad looks in a row stop the run.
      window: looks that the median is taken over; bad ones do not enter it.
    """

    def __init__(
        self,
        *,
        every: int,
        last_good_step: Callable[[], int | None],
        factor: float = 2.0,
        patience: int = 3,
        window: int = 50,
    ):
        self.every = every
        self._last_good_step = last_good_step
        self._factor, self._patience = factor, patience
        self._losses: deque[float] = deque(maxlen=window)
        self._num_bad_checks = 0
        self._last_good_event: StepEvent | None = None

    def __call__(self, event: StepEvent) -> None:
        """Looks at one step.

        Raises:
          TrainingHalted: names the step, the examples and the last good checkpoint.
        """
        loss = event.metrics["loss"]
        if not math.isfinite(loss):
            raise TrainingHalted(f"the loss is {loss} {self._describe_event(event)}")
        median = statistics.median(self._losses) if self._losses else loss
        if loss <= self._factor * median:
            self._losses.append(loss)
            self._num_bad_checks, self._last_good_event = 0, event
            return
        self._num_bad_checks += 1
        if self._num_bad_checks >= self._patience:
            raise TrainingHalted(
                f"the loss is {loss:.4g}, above {self._factor:g} times its running median "
                f"{median:.4g} for {self._num_bad_checks} looks in a row, "
                f"{self._describe_event(event)}"
            )

    def close(self) -> None:
        """Nothing to free."""

    def _describe_event(self, event: StepEvent) -> str:
        last_example = event.position + event.batch_size - 1
        text = f"at step {event.step} (examples {event.position} to {last_example}); "
        if self._last_good_event is not None:
            text += f"it was well at step {self._last_good_event.step} (examples up to "
            text += f"{self._last_good_event.position + self._last_good_event.batch_size - 1}); "
        last_good_step = self._last_good_step()
        if last_good_step is None:
            return text + "no checkpoint was saved before; try a lower learning rate or more warmup"
        return (
            text
            + f"the last good checkpoint is step {last_good_step}: start again from there with a "
            "lower learning rate, more warmup or stronger clipping"
        )
