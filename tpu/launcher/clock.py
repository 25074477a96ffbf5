"""Provides the clock of the launcher; BERT_TPU_TIME_SCALE makes it run faster, for tests."""

import os
import threading
import time

from bert_jax.errors import ConfigError


class ScaledClock:
    """Runs `scale` times faster than real time."""

    def __init__(self, scale: float = 1.0):
        self._scale, self._started_at = scale, time.time()

    def time(self) -> float:
        """Returns seconds since 1970 on this clock, which starts at the real time."""
        return self._started_at + (time.time() - self._started_at) * self._scale

    def sleep(self, seconds: float) -> None:
        """Sleeps for a number of seconds on this clock."""
        time.sleep(seconds / self._scale)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Waits for an event, at most for a number of seconds on this clock; True if it is set."""
        return event.wait(seconds / self._scale)


class DryRunClock(ScaledClock):
    """Advances only by `sleep`, which returns at once, so that a dry run does not wait."""

    def time(self) -> float:
        return self._started_at

    def sleep(self, seconds: float) -> None:
        self._started_at += seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait()


def from_environment(dry_run: bool) -> ScaledClock:
    """Returns the clock to use: real time, scaled by BERT_TPU_TIME_SCALE, or that of a dry run.

    Raises:
      ConfigError: BERT_TPU_TIME_SCALE is not a number above 0.
    """
    if dry_run:
        return DryRunClock()
    text = os.environ.get("BERT_TPU_TIME_SCALE", "1")
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if scale <= 0:
        raise ConfigError(f"BERT_TPU_TIME_SCALE={text!r}: expected a number above 0")
    return ScaledClock(scale)
