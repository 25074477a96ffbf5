"""Many fine-tuning runs one after another, each in a folder and a process of its own.

    <output>/lock           held by the command that works here
             settings.json  what all runs share; a command with other settings is refused
             <cell>/        a run folder, as `bert-jax finetune` leaves it, and beside that
                    log.txt        what the run said
                    finished.json  its arguments, written when it had ended well

Several commands can share the cells of a folder on lanes: see lanes.py.

A process of its own gives back all memory, on a GPU as well, and takes nothing else with it when
it crashes. A finished cell is not run again; one that was stopped or killed goes on where it was.
"""

import contextlib
import fcntl
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from tqdm import tqdm

from bert_jax.aside import write_json
from bert_jax.config import diff
from bert_jax.errors import UserError
from bert_jax.studies import lanes
from bert_jax.studies.lanes import Lane
from bert_jax.train import metrics_log, run_folder
from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED, caught
from bert_jax.train.progress import duration

SETTINGS, LOG, FINISHED = "settings.json", "log.txt", "finished.json"
FINETUNE = (sys.executable, "-m", "bert_jax", "finetune")
_LOOK_EVERY = 0.5  # seconds
_TAIL = 4096  # bytes of a log in which its last line is looked for


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run.

    Attributes:
      name: its folder below the output's.
      arguments: of `bert-jax finetune`, all but --run.
      work: how long it takes, in any unit that is the same for all cells of a command.
    """

    name: str
    arguments: tuple[str, ...]
    work: float = 1.0


class Stopped(Exception):
    """A signal asked to stop; the run of the moment has saved what it had."""


class CellRunner:
    """Runs cells in a folder, which is its own while it is entered.

    The first SIGTERM or Ctrl-C is passed on to the run of the moment, which saves and leaves; a
    second Ctrl-C ends it at once. Enter it on the main thread.

    Args:
      folder: the output; made if absent.
      command: the beginning of each run's command line.
      lane: run the cells of this lane only; the folder is then shared with the other lanes.

    Raises:
      UserError: another command works in the folder, or on the lane.
    """

    def __init__(
        self, folder: Path, command: Sequence[str] = FINETUNE, *, lane: Lane | None = None
    ):
        self._folder, self._command, self._lane = folder, command, lane
        self._stack = contextlib.ExitStack()
        self._child: subprocess.Popen[bytes] | None = None
        self._requested = False

    def __enter__(self) -> "CellRunner":
        if self._lane is None:
            self._stack.enter_context(run_folder.locked(self._folder))
        else:
            self._stack.enter_context(lanes.locked(self._folder, self._lane))
        self._stack.enter_context(caught((signal.SIGTERM, signal.SIGINT), self._note))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def settle(self, settings: dict[str, Any]) -> None:
        """Leaves the settings that all cells share; in a used folder, insists on the same ones.

        Raises:
          UserError: it was begun with others; names them.
        """
        if self._lane is None:
            self._settle(settings)
        else:
            with lanes.in_turn(self._folder):
                self._settle(settings)

    def _settle(self, settings: dict[str, Any]) -> None:
        file = self._folder / SETTINGS
        if not file.exists():
            write_json(file, settings)
            return
        # Through JSON, as those that were read: a tuple is a list there.
        changes = diff(run_folder.read_json(file), json.loads(json.dumps(settings)))
        if changes:
            lines = "".join(f"\n  {path}: {old!r} there, {new!r} now" for path, old, new in changes)
            raise UserError(
                f"{self._folder} was begun with other settings:{lines}\n"
                "take these values back, or choose another --output"
            )

    def run(self, cells: Sequence[Cell]) -> dict[str, str]:
        """Runs those that are not finished, in the given order; returns the failures.

        Args:
          cells: all of the study; a lane takes its share of them, longest first.

        Returns:
          {name of a failed cell: why}; the others are finished.

        Raises:
          Stopped: a signal came.
        """
        if self._lane is not None:
            everything, cells = cells, self._lane.share(cells)
            self._lane.write(self._folder, cells)
            _say(f"{self._lane}: {len(cells)} of {len(everything)} runs")
        failed: dict[str, str] = {}
        ahead = [cell for cell in cells if not is_finished(self._folder, cell)]
        if len(ahead) < len(cells):
            _say(f"{len(cells) - len(ahead)} of {len(cells)} runs were finished before")
        total, begun, done = sum(cell.work for cell in ahead), time.monotonic(), 0.0
        form = "{desc} {percentage:3.0f}%|{bar}| {elapsed} gone, {remaining} left"
        with tqdm(total=total, bar_format=form, disable=None) as bar:
            for number, cell in enumerate(ahead, start=1):
                bar.set_description_str(f"[{number}/{len(ahead)}] {cell.name}")
                reason = self._run_one(cell, bar)
                done += cell.work
                _show(bar, done)
                if reason is not None:
                    failed[cell.name] = reason
                gone = time.monotonic() - begun
                left = f", {duration(gone / done * (total - done))} left" if done < total else ""
                end = "finished" if reason is None else f"FAILED: {reason}"
                _say(f"[{number}/{len(ahead)}] {cell.name} {end} ({duration(gone)} gone{left})")
        return failed

    def _run_one(self, cell: Cell, bar: tqdm) -> str | None:
        """Why the cell failed; None if it is finished."""
        run, before = self._folder / cell.name, bar.n
        run.mkdir(parents=True, exist_ok=True)
        self._await_former(run)
        if self._requested:
            raise Stopped
        with (run / LOG).open("ab") as log:
            self._child = subprocess.Popen(
                [*self._command, *cell.arguments, "--run", str(run)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                if self._requested:  # the signal came while the process began
                    self._child.terminate()
                while (code := self._child.poll()) is None:
                    _show(bar, before + cell.work * progress_of(run))
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._child.wait(_LOOK_EVERY)
            except BaseException:
                self._child.kill()
                self._child.wait()
                raise
            finally:
                self._child = None
        if code == EXIT_DONE:
            write_json(run / FINISHED, {"arguments": list(cell.arguments)})
            return None
        if self._requested or code == EXIT_PREEMPTED:
            raise Stopped
        return _reason(run, code)

    def _await_former(self, run: Path) -> None:
        """Lets a process go to its end that was left behind here by a command that was killed."""
        told = False
        while not self._requested and _is_held(run / run_folder.LOCK):
            if not told:
                holder = (run / run_folder.LOCK).read_text(encoding="utf-8").strip()
                _say(f"{run}: waiting for {holder}, which still trains there")
            told = True
            time.sleep(_LOOK_EVERY)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._requested = True
        if self._child is not None:
            self._child.terminate()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def is_finished(folder: Path, cell: Cell) -> bool:
    """Whether the cell has ended well, with the same arguments."""
    file = folder / cell.name / FINISHED
    return file.exists() and run_folder.read_json(file) == {"arguments": list(cell.arguments)}


def progress_of(run: Path) -> float:
    """Which share of its updates a run has made, by its own log; 0 before the first line."""
    try:
        config = json.loads((run / run_folder.CONFIG).read_text(encoding="utf-8"))["config"]
        steps = sum(phase["steps"] for phase in config["train"]["phases"])
        row = json.loads(_last_lines(run / metrics_log.FILE)[-1])
        return min(1.0, row["step"] / steps)
    except (OSError, ValueError, LookupError, TypeError):  # not begun, or a line half written
        return 0.0


def _show(bar: tqdm, done: float) -> None:
    bar.update(max(0.0, done - bar.n))


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)


def _reason(run: Path, code: int) -> str:
    """The last thing that a failed run said."""
    ended = f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
    lines = _last_lines(run / LOG)
    errors = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    said = " ".join(lines[errors[-1] if errors else -1 :]).removeprefix("error: ")
    return f"{said or 'it said nothing'} ({ended}; {run / LOG})"


def _last_lines(file: Path) -> list[str]:
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _TAIL))
        lines = stream.read().decode("utf-8", errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()]


def _is_held(lock: Path) -> bool:
    if not lock.exists():
        return False
    with lock.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
