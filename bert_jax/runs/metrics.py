"""Logs the metrics of a run to `metrics.jsonl`, one JSON object per line."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_write
from bert_jax.runs.hooks import StepEvent, Throughput

FILE = "metrics.jsonl"
TRAIN, EVALUATION = "train", "evaluation"
_TAIL_BYTES = 4096


class MetricsLog:
    """Appends metrics to `metrics.jsonl`; each line is flushed before the call returns.

    A line is {"split", "step", "phase", "seconds", metric: value, ...}. "split" is "train" or
    "evaluation", and values that are not finite become null. When a run is resumed, lines of steps
    after `resume_step` are removed, because those steps run again, and so is an incomplete last
    line.

    Args:
      folder: a local run folder.
      every: steps between training lines.
      resume_step: the step of the restored checkpoint; 0 for a new run.
      peak_flops: peak FLOP/s of all devices together, for the MFU; None: no MFU.
    """

    def __init__(
        self,
        folder: Path,
        *,
        every: int,
        resume_step: int = 0,
        peak_flops: float | None = None,
    ):
        self.every = every
        self._throughput = Throughput(peak_flops)
        path = folder / FILE
        earlier_rows = [row for row in read_metrics(path) if row["step"] <= resume_step]
        atomic_write(path, "".join(json.dumps(row) + "\n" for row in earlier_rows))
        self._stream = path.open("a", encoding="utf-8")

    def __call__(self, event: StepEvent) -> None:
        """Logs the metrics of one training step."""
        values = {**event.metrics, **self._throughput.measure(event)}
        fields = {"phase": event.phase, "seconds": round(event.seconds, 3)}
        self._write({"split": TRAIN, "step": event.step, **fields}, values)

    def write_evaluation(self, step: int, values: Mapping[str, float], *, phase: str = "") -> None:
        """Logs the metrics of an evaluation after `step` updates."""
        self._write({"split": EVALUATION, "step": step, "phase": phase}, values)

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()

    def _write(self, fields: dict[str, Any], values: Mapping[str, float]) -> None:
        # NaN and Infinity are no JSON, although Python's `json` writes them.
        finite = {name: float(v) if math.isfinite(v) else None for name, v in values.items()}
        self._stream.write(json.dumps({**fields, **finite}) + "\n")
        self._stream.flush()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a `metrics.jsonl`; [] if the file does not exist.

    An incomplete last line is skipped.

    Raises:
      UserError: another line was not written by `MetricsLog`.
    """
    if not path.exists():
        return []
    if not path.is_file():
        raise UserError(f"{path} is not a file; move it away")
    rows = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            is_valid = type(row["step"]) is int and row["split"] in (TRAIN, EVALUATION)
            is_valid &= isinstance(row.get("phase", ""), str) and all(
                value is None or type(value) in (int, float)
                for name, value in row.items()
                if name not in ("split", "phase")
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            row, is_valid = {}, False
        if not is_valid:
            if number == len(lines):  # incomplete, because the process was killed
                break
            raise UserError(
                f'{path}, line {number}: expected a JSON object with "step", "split" and numbers; '
                "repair the line, or move the file away"
            )
        rows.append(row)
    return rows


def last_lines(file: Path) -> list[str]:
    """Returns the last lines of a log or metrics file, without white space and empty lines.

    Only the last 4,096 bytes are read, so the first line may be cut off at its beginning. The last
    one may be incomplete if a process is writing it.
    """
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        lines = stream.read().decode("utf-8", errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()]
