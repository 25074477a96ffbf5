"""What a host says: one file for a life, lines of the trainer and the agent's own between them."""

import threading
import time
from pathlib import Path

from tpu.worker.secret_manager import Redactor


class Log:
    """Appends lines to a file; threads may share it.

    Args:
      file: made if absent.
    """

    def __init__(self, file: Path):
        file.parent.mkdir(parents=True, exist_ok=True)
        self.file, self.last = file, ""
        self.redact = Redactor({})
        self._stream = file.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def say(self, line: str) -> None:
        """A line of the agent's own, with the time."""
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        self.pass_on(f"[agent {moment}] {line}")

    def pass_on(self, line: str) -> None:
        """A line as it is, but for the values of secrets."""
        plain = self.redact(line.rstrip())
        with self._lock:
            self._stream.write(f"{plain}\n")
            self._stream.flush()
            self.last = plain[:500] or self.last
