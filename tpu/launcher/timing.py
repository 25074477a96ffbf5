"""The clock of the launcher; BERT_TPU_TIME_SCALE makes it run faster, for trying things out."""

import os
import threading
import time

from bert_jax.errors import ConfigError


class Timing:
    """Seconds as the launcher counts them; `scale` of them pass in a second of the world's."""

    def __init__(self, scale: float = 1.0):
        self._scale, self._begun = scale, time.time()

    def clock(self) -> float:
        """Seconds since 1970, from the launcher's start on at its own pace."""
        return self._begun + (time.time() - self._begun) * self._scale

    def sleep(self, seconds: float) -> None:
        """Waits for so many of the launcher's seconds."""
        time.sleep(seconds / self._scale)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Waits for an event, so many of the launcher's seconds at most; whether it has come."""
        return event.wait(seconds / self._scale)


class NoWaiting(Timing):
    """For dry runs: time passes only by sleeping, and that takes none."""

    def clock(self) -> float:
        return self._begun

    def sleep(self, seconds: float) -> None:
        self._begun += seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait()


def from_environment(dry: bool) -> Timing:
    """The clock to go by.

    Raises:
      ConfigError: BERT_TPU_TIME_SCALE is no number above 0.
    """
    if dry:
        return NoWaiting()
    text = os.environ.get("BERT_TPU_TIME_SCALE", "1")
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if scale <= 0:
        raise ConfigError(f"BERT_TPU_TIME_SCALE={text!r}: expected a number above 0")
    return Timing(scale)
