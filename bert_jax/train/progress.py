"""The live line of a run on stderr, and of whatever else takes its time."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

from bert_jax.train.hooks import StepEvent, Throughput


class LiveLine:
    """One line that is rewritten in a terminal; elsewhere a plain line every `interval` seconds.

    Args:
      interval: seconds between plain lines where stderr is not a terminal.
      stream: where to write; stderr when None.
    """

    def __init__(
        self,
        *,
        interval: float = 30.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._interval, self._clock = interval, clock
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._printed_at: float | None = None

    def show(self, text: Callable[[], str], *, last: bool = False) -> None:
        """Writes `text()` if it is time for a line; the last one is always written."""
        now = self._clock()
        waiting = self._printed_at is not None and now - self._printed_at < self._interval
        if not self._live and waiting and not last:
            return
        self._printed_at = now
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{text()[:width]:<{width}}")
        else:
            self._stream.write(f"{text()}\n")
        self._stream.flush()

    def close(self) -> None:
        """Leaves the live line, so that what is printed next begins on a line of its own."""
        if self._live and self._printed_at is not None:
            self._stream.write("\n")
            self._stream.flush()


class ProgressLine:
    """A `LiveLine` of the training loop.

    Args:
      every: steps from one refresh to the next.
      peak_flops: FLOP/s of all devices together, to show the MFU.
      interval, stream, clock: see `LiveLine`.
    """

    def __init__(
        self,
        *,
        every: int,
        peak_flops: float | None = None,
        interval: float = 30.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.every = every
        self._throughput = Throughput(peak_flops)
        self._line = LiveLine(interval=interval, stream=stream, clock=clock)
        self._seconds_per_step: float | None = None
        self.close = self._line.close

    def __call__(self, event: StepEvent) -> None:
        """Shows one step."""
        self._line.show(lambda: self._text(event), last=event.step == event.total_steps)

    def _text(self, event: StepEvent) -> str:
        rates = self._throughput.measure(event)
        if rates:
            measured, before = 1 / rates["steps_per_second"], self._seconds_per_step
            # A phase of longer sequences is slower: follow it, but not every jitter.
            self._seconds_per_step = measured if before is None else 0.7 * before + 0.3 * measured
        parts = [f"{event.phase} {event.step}/{event.total_steps}"]
        parts += [
            f"{label} {event.metrics[name]:{form}}"
            for name, label, form in (("loss", "loss", ".4f"), ("mlm_accuracy", "mlm acc", ".1%"))
            if name in event.metrics
        ]
        if rates:
            parts.append(f"{rates['tokens_per_second']:,.0f} tokens/s")
        if "mfu" in rates:
            parts.append(f"MFU {rates['mfu']:.1%}")
        if self._seconds_per_step is not None:
            left = (event.total_steps - event.step) * self._seconds_per_step
            parts.append(f"{duration(left)} left")
        return " | ".join(parts)


def duration(seconds: float) -> str:
    """Seconds as "42s", "3m 05s", "2h 07m" or "4d 03h"."""
    whole = max(0, round(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days}d {hours % 24:02d}h"
    if hours:
        return f"{hours}h {minutes % 60:02d}m"
    return f"{minutes}m {whole % 60:02d}s" if minutes else f"{whole}s"
