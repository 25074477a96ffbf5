"""Shows the progress of a run as one live line on stderr."""

import contextlib
import math
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from tqdm import tqdm

from bert_jax.runs.hooks import StepEvent, Throughput

_MAX_SECONDS_BETWEEN_UPDATES = 10.0


class LiveLine:
    """Writes one line that is overwritten in a terminal, or a new line every `interval` seconds.

    In a terminal the line is a tqdm bar, so that log messages are written above it.

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
        self._bar: tqdm[Any] | None = None

    def update(self, text: Callable[[], str], *, is_last: bool = False) -> None:
        """Writes `text()` if `interval` has passed; always writes the last line."""
        now = self._clock()
        too_soon = self._printed_at is not None and now - self._printed_at < self._interval
        if not self._is_terminal and too_soon and not is_last:
            return
        self._printed_at = now
        line = text()  # outside of `suppress`, because it may wait for the devices
        # A run must not end because its terminal was closed, the program that read its output has
        # exited, or the disk with its log is full.
        with contextlib.suppress(OSError):
            self._write(line)

    def _write(self, line: str) -> None:
        if not self._is_terminal:
            self._stream.write(f"{line}\n")
            self._stream.flush()
            return
        if self._bar is None:
            self._bar = tqdm(bar_format="{desc}", file=self._stream)
        width = shutil.get_terminal_size().columns - 1
        self._bar.set_description_str(line[:width])

    def close(self) -> None:
        """Ends the live line with a newline."""
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.close()
            self._bar = None


class ProgressLine:
    """Shows step, loss, throughput and remaining time of training in a `LiveLine`.

    The line is updated after the first step, after the last one, every `log_every` steps, and after
    10 s without an update. Reading the loss of a step waits until the devices have finished it.

    Args:
      log_every: steps between updates of the line.
      pauses_left: returns an estimate of the seconds that evaluations and saves after a step take.
      peak_flops: peak FLOP/s of all devices together, for the MFU; None: no MFU.
      interval, stream, clock: see `LiveLine`.
    """

    def __init__(
        self,
        *,
        log_every: int,
        pauses_left: Callable[[int], float] = lambda step: 0.0,
        peak_flops: float | None = None,
        interval: float = 30.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.every = 1  # every step, to notice that the last update was long ago
        self._log_every, self._pauses_left, self._clock = log_every, pauses_left, clock
        self._updated_at = -math.inf
        self._throughput = Throughput(peak_flops)
        self._line = LiveLine(interval=interval, stream=stream, clock=clock)
        self._seconds_per_step: float | None = None
        self.close = self._line.close

    def __call__(self, event: StepEvent) -> None:
        """Shows one step if an update is due."""
        is_last = event.step == event.total_steps
        now = self._clock()
        is_overdue = now - self._updated_at >= _MAX_SECONDS_BETWEEN_UPDATES
        if is_last or is_overdue or event.step % self._log_every == 0:
            self._line.update(lambda: self._text(event), is_last=is_last)
            self._updated_at = self._clock()  # later than `now` if the line waited for the device
        if is_last:
            self._line.close()  # so that later messages appear below the last line

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
            remaining += self._pauses_left(event.step)
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
