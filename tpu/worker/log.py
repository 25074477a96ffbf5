"""Writes the log of a host: lines of the trainer and of the agent, without secrets."""

import html
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path

_MIN_REDACTED_LENGTH = 4  # replacing shorter values would make logs unreadable


class HostLog:
    """Appends lines to the log file of an attempt; safe to use from several threads.

    Args:
      path: the log file; it is created if it does not exist.
    """

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.last_line = path, ""
        self.redact = Redactor({})
        self._stream = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def info(self, line: str) -> None:
        """Logs a line of the agent, with the time."""
        timestamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        self.forward(f"[agent {timestamp}] {line}")

    def forward(self, line: str) -> None:
        """Logs a line of the trainer unchanged, except for the values of secrets."""
        redacted = self.redact(line.rstrip())
        with self._lock:
            self._stream.write(f"{redacted}\n")
            self._stream.flush()
            self.last_line = redacted[:500] or self.last_line


class Redactor:
    """Replaces the values of secrets in the output of a trainer."""

    def __init__(self, secrets: Mapping[str, str]):
        lines = {
            (name, form)
            for name, text in secrets.items()
            for line in text.splitlines()
            for form in (
                line,
                json.dumps(line, ensure_ascii=False)[1:-1],
                html.escape(line),
            )  # as JSON and HTML files quote it
        }
        # Longest first, because one value may contain another.
        self._lines = sorted(
            ((line, name) for name, line in lines if len(line) >= _MIN_REDACTED_LENGTH),
            key=lambda r: -len(r[0]),
        )

    def __call__(self, text: str) -> str:
        """Returns the text with <NAME> in place of each value."""
        for line, name in self._lines:
            text = text.replace(line, f"<{name}>")
        return text
