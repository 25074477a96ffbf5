"""Records the attempts of a run: each process that trained in its folder, and how it ended.

Every line of `attempts.jsonl` is a JSON object. A process writes one when its training starts,

    {"event": "start", "time": "2026-11-22T10:52:18+00:00", "step": 0, "command": "bert-jax ...",
     "num_parameters": 4385920, "data": {"Training corpus": "...", ...}}

and one when it ends. A process that was killed leaves only the first line.

    {"event": "end", "seconds": 12.5, "outcome": "complete", "message": ""}

"seconds" is the wall time of the process since its start. Imports neither jax nor TensorFlow.
"""

import dataclasses
import json
import math
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from bert_jax.errors import UserError
from bert_jax.io.json_io import parse_json

FILE = "attempts.jsonl"

Outcome = Literal["complete", "stopped early", "stopped by a signal", "failed"]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Describes one process that trained in a run folder.

    Attributes:
      started: when the process started, in ISO 8601 and UTC.
      start_step: number of optimizer updates done before this attempt.
      command: the command line.
      num_parameters: number of model parameters, including the heads; None if unknown.
      data: descriptions of the run's data for the report, by name.
      seconds: wall time until its end; None if the process is still running or was killed.
      outcome: how it ended; None if the process is still running or was killed.
      message: for a failed attempt, the error.
    """

    started: str
    start_step: int
    command: str
    num_parameters: int | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    outcome: str | None = None
    message: str = ""


class AttemptLog:
    """Appends a start line to `attempts.jsonl` when created, and an end line on `end()`.

    Args:
      folder: the run folder.
      started_at: `time.monotonic()` at the start of the process.
      step: number of optimizer updates done before this attempt.
      num_parameters, data: see `Attempt`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        started_at: float,
        step: int,
        num_parameters: int,
        data: Mapping[str, str],
    ):
        self._file, self._started_at = folder / FILE, started_at
        # The monotonic clock measures how long ago the start was; the clock of the machine may be
        # corrected in between.
        started = datetime.now(UTC) - timedelta(seconds=time.monotonic() - started_at)
        self._append(
            {
                "event": "start",
                "time": started.isoformat(timespec="seconds"),
                "step": step,
                "command": command_line(sys.argv),
                "num_parameters": num_parameters,
                "data": dict(data),
            }
        )

    def end(self, outcome: Outcome, message: str = "") -> None:
        """Records how the process ended; `message` is the error of a failed attempt."""
        seconds = round(time.monotonic() - self._started_at, 1)
        self._append({"event": "end", "seconds": seconds, "outcome": outcome, "message": message})

    def _append(self, line: Mapping[str, Any]) -> None:
        # The line of a process that was killed while it wrote may be incomplete.
        is_incomplete = self._file.exists() and not self._file.read_bytes().endswith(b"\n")
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(("\n" if is_incomplete else "") + json.dumps(line) + "\n")


def command_line(argv: list[str]) -> str:
    """Returns the command line for a user to paste, without the folder of the program."""
    program, arguments = Path(argv[0]).name, argv[1:]
    words = ["python", "-m", "bert_jax"] if program == "__main__.py" else [program]
    return shlex.join([*words, *arguments])


def read_attempts(folder: Path) -> list[Attempt]:
    """Returns the attempts of a run, oldest first; [] if none was recorded.

    A line that is not JSON, such as one that a kill has cut off, is skipped.

    Raises:
      UserError: a line is JSON, but not a valid start, or end of a start.
    """
    path = folder / FILE
    if not path.is_file():
        return []
    attempts: list[Attempt] = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            content = parse_json(line, path)
        except UserError:
            continue
        if not _is_valid(content) or (content["event"] == "end" and not attempts):
            raise UserError(
                f'{path}, line {number}: expected a valid record of the "event" start or end; '
                "repair or delete the line, or move the file away"
            )
        if content["event"] == "start":
            attempts.append(
                Attempt(
                    started=content["time"],
                    start_step=content["step"],
                    command=content["command"],
                    num_parameters=content.get("num_parameters"),
                    data=content.get("data", {}),
                )
            )
        else:
            ending = {name: content[name] for name in ("seconds", "outcome", "message")}
            attempts[-1] = dataclasses.replace(attempts[-1], **ending)
    return attempts


def _is_valid(content: Any) -> bool:
    if not isinstance(content, dict):
        return False
    event = content.get("event")
    if event == "start":
        types = {"time": str, "step": int, "command": str}
        has_parameters = isinstance(content.get("num_parameters"), int | None)
        is_valid = has_parameters and isinstance(content.get("data", {}), dict)
    else:
        types = {"outcome": str, "message": str, "seconds": (int, float)}
        is_valid = event == "end"
    has_types = all(isinstance(content.get(name), kind) for name, kind in types.items())
    return is_valid and has_types and (event == "start" or math.isfinite(content["seconds"]))
