"""Shows the progress of a run as one live line on stderr."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

from bert_jax.runs.hooks import StepEvent, Throughput


class LiveLine:
    """Writes one line that is overwritten in a terminal, or a new line every `interval` seconds.

    Args:
      interval: seconds between lines if the stream is not a terminal.
      stream: the output; None: stderr.
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
        self._is_terminal = self._stream.isatty()
        self._printed_at: float | None = None

    def update(self, text: Callable[[], str], *, is_last: bool = False) -> None:
        """Writes `text()` if `interval` has passed; always writes the last line."""
        now = self._clock()
        too_soon = self._printed_at is not None and now - self._printed_at < self._interval
        if not self._is_terminal and too_soon and not is_last:
            return
        self._printed_at = now
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{text()[:width]:<{width}}")
        else:
            self._stream.write(f"{text()}\n")
        self._stream.flush()

    def close(self) -> None:
        """Ends the live line with a newline."""
        if self._is_terminal and self._printed_at is not None:
            self._stream.write("\n")
            self._stream.flush()


class ProgressLine:
    """Shows step, loss, throughput and remaining time of training in a `LiveLine`.

    Args:
      every: steps between updates of the line.
      peak_flops: peak FLOP/s of all devices together, for the MFU; None: no MFU.
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
        self._line.update(lambda: self._text(event), is_last=event.step == event.total_steps)

    def _text(self, event: StepEvent) -> str:
        rates = self._throughput.measure(event)
        if rates:
            seconds_per_step, previous = 1 / rates["steps_per_second"], self._seconds_per_step
            # A phase of longer sequences is slower: follow it, but not every jitter.
            self._seconds_per_step = (
                seconds_per_step if previous is None else 0.7 * previous + 0.3 * seconds_per_step
            )
        parts = [f"{event.phase} {event.step}/{event.total_steps}"]
        parts += [
            f"{label} {event.metrics[name]:{format_spec}}"
            for name, label, format_spec in (
                ("loss", "loss", ".4f"),
                ("mlm_accuracy", "mlm acc", ".1%"),
            )
            if name in event.metrics
        ]
        if rates:
            parts.append(f"{rates['tokens_per_second']:,.0f} tokens/s")
        if "mfu" in rates:
            parts.append(f"MFU {rates['mfu']:.1%}")
        if self._seconds_per_step is not None:
            remaining = (event.total_steps - event.step) * self._seconds_per_step
            parts.append(f"{format_duration(remaining)} left")
        return " | ".join(parts)


def format_duration(seconds: float) -> str:
    """Formats seconds as "42s", "3m 05s", "2h 07m" or "4d 03h"."""
    rounded = max(0, round(seconds))
    minutes, hours, days = rounded // 60, rounded // 3600, rounded // 86400
    if days:
        return f"{days}d {hours % 24:02d}h"
    if hours:
        return f"{hours}h {minutes % 60:02d}m"
    return f"{minutes}m {rounded % 60:02d}s" if minutes else f"{rounded}s"
