"""Records the attempts of a run: each process that trained in its folder, and how it ended.

Every line of `attempts.jsonl` is a JSON object. A process writes one when its training starts,

    {"event": "start", "time": "2026-11-22T10:52:18+00:00", "step": 0, "command": "bert-jax ...",
     "num_parameters": 4385920, "data": {"training corpus": "prepared/train", ...}}

and one when it ends. A process that was killed leaves only the first line.

    {"event": "end", "seconds": 12.5, "outcome": "complete", "message": ""}

"seconds" is the wall time of the process since its start. Imports neither jax nor TensorFlow.
"""

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
from bert_jax.json_io import parse_json

FILE = "attempts.jsonl"

Outcome = Literal["complete", "stopped early", "stopped by a signal", "failed"]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Describes one process that trained in a run folder.

    Attributes:
      started: when the process started, in ISO 8601 and UTC.
      start_step: number of updates done before.
      command: the command line.
      num_parameters: of the model, heads included; None if unknown.
      data: describes the data of the run for a reader: name -> text.
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
    """Appends the start and the end of this process to `attempts.jsonl`.

    Args:
      folder: the run folder.
      started_at: `time.monotonic()` at the start of the process.
      step: number of updates done before.
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
            stream.write("\n" * is_incomplete + json.dumps(line) + "\n")


def command_line(argv: list[str]) -> str:
    """Returns a command that a user can type again; only the name of the program is shortened."""
    program, arguments = Path(argv[0]).name, argv[1:]
    words = ["python", "-m", "bert_jax"] if program == "__main__.py" else [program]
    return shlex.join([*words, *arguments])


def read_attempts(folder: Path) -> list[Attempt]:
    """Returns the attempts of a run, oldest first; [] if none was recorded.

    A line that is cut off, because the process was killed while it wrote, is skipped.

    Raises:
      UserError: a line is JSON, but not a line of `AttemptLog`.
    """
    path = folder / FILE
    if not path.is_file():
        return []
    attempts: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            content = parse_json(line, path)
        except UserError:
            continue
        if not _is_valid(content) or (content["event"] == "end" and not attempts):
            raise UserError(
                f'{path}, line {number}: expected a JSON object with the "event" start or end; '
                "repair the line, or move the file away"
            )
        if content["event"] == "start":
            attempts.append(
                {
                    "started": content["time"],
                    "start_step": content["step"],
                    "command": content["command"],
                    "num_parameters": content.get("num_parameters"),
                    "data": content.get("data", {}),
                }
            )
        else:
            ending = {name: content[name] for name in ("seconds", "outcome", "message")}
            attempts[-1].update(ending)
    return [Attempt(**fields) for fields in attempts]


def _is_valid(content: Any) -> bool:
    if not isinstance(content, dict):
        return False
    if content.get("event") == "start":
        types = {"time": str, "step": int, "command": str}
    else:
        types = {"event": str, "outcome": str, "message": str, "seconds": (int, float)}
    has_types = all(isinstance(content.get(name), kind) for name, kind in types.items())
    has_parameters = isinstance(content.get("num_parameters"), int | None)
    is_finite = math.isfinite(content.get("seconds", 0)) if has_types else False
    return is_finite and has_parameters and isinstance(content.get("data", {}), dict)
