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

from bert_jax.atomic_io import write_json
from bert_jax.config_lib import diff
from bert_jax.errors import UserError
from bert_jax.runs import metrics, run_folder
from bert_jax.runs.progress import format_duration
from bert_jax.studies import job_shards
from bert_jax.studies.job_shards import JobShard
from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED, signal_handlers

SETTINGS_FILE, LOG_FILE, FINISHED_FILE = "settings.json", "log.txt", "finished.json"
FINETUNE_COMMAND = (sys.executable, "-m", "bert_jax", "finetune")
_POLL_SECONDS = 0.5  # seconds
_TAIL_BYTES = 4096  # bytes of a log in which its last line is looked for


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run.

    Attributes:
      name: its folder below the output's.
      arguments: of `bert-jax finetune`, all but --run.
      work: how long it takes, in any unit that is the same for all cells of a command.
    """

    name: str
    arguments: tuple[str, ...]
    cost: float = 1.0


class Interrupted(Exception):
    """A signal asked to stop; the run of the moment has saved what it had."""


class JobRunner:
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
        self,
        folder: Path,
        command: Sequence[str] = FINETUNE_COMMAND,
        *,
        shard: JobShard | None = None,
    ):
        self._folder, self._command, self._shard = folder, command, shard
        self._stack = contextlib.ExitStack()
        self._child: subprocess.Popen[bytes] | None = None
        self._stop_requested = False

    def __enter__(self) -> "JobRunner":
        if self._shard is None:
            self._stack.enter_context(run_folder.lock_run_folder(self._folder))
        else:
            self._stack.enter_context(job_shards.locked(self._folder, self._shard))
        self._stack.enter_context(signal_handlers((signal.SIGTERM, signal.SIGINT), self._on_signal))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def write_or_check_settings(self, settings: dict[str, Any]) -> None:
        """Leaves the settings that all cells share; in a used folder, insists on the same ones.

        Raises:
          UserError: it was begun with others; names them.
        """
        if self._shard is None:
            self._write_or_check_settings(settings)
        else:
            with job_shards.exclusive(self._folder):
                self._write_or_check_settings(settings)

    def _write_or_check_settings(self, settings: dict[str, Any]) -> None:
        file = self._folder / SETTINGS_FILE
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

    def run(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Runs those that are not finished, in the given order; returns the failures.

        Args:
          cells: all of the study; a lane takes its share of them, longest first.

        Returns:
          {name of a failed cell: why}; the others are finished.

        Raises:
          Stopped: a signal came.
        """
        if self._shard is not None:
            all_jobs, jobs = jobs, self._shard.select_jobs(jobs)
            self._shard.write_manifest(self._folder, jobs)
            _log(f"{self._shard}: {len(jobs)} of {len(all_jobs)} runs")
        failed: dict[str, str] = {}
        pending = [job for job in jobs if not is_finished(self._folder, job)]
        if len(pending) < len(jobs):
            _log(f"{len(jobs) - len(pending)} of {len(jobs)} runs were finished before")
        total, start_time, done_cost = sum(job.cost for job in pending), time.monotonic(), 0.0
        bar_format = "{desc} {percentage:3.0f}%|{bar}| {elapsed} gone, {remaining} left"
        with tqdm(total=total, bar_format=bar_format, disable=None) as bar:
            for number, job in enumerate(pending, start=1):
                bar.set_description_str(f"[{number}/{len(pending)}] {job.name}")
                reason = self._run_one(job, bar)
                done_cost += job.cost
                _advance(bar, done_cost)
                if reason is not None:
                    failed[job.name] = reason
                elapsed = time.monotonic() - start_time
                remaining = (
                    f", {format_duration(elapsed / done_cost * (total - done_cost))} left"
                    if done_cost < total
                    else ""
                )
                status = "finished" if reason is None else f"FAILED: {reason}"
                _log(
                    f"[{number}/{len(pending)}] {job.name} {status} "
                    f"({format_duration(elapsed)} gone{remaining})"
                )
        return failed

    def _run_one(self, job: Job, bar: tqdm) -> str | None:
        """Why the cell failed; None if it is finished."""
        run, start_cost = self._folder / job.name, bar.n
        run.mkdir(parents=True, exist_ok=True)
        self._wait_for_orphan(run)
        if self._stop_requested:
            raise Interrupted
        with (run / LOG_FILE).open("ab") as log:
            self._child = subprocess.Popen(
                [*self._command, *job.arguments, "--run", str(run)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                if self._stop_requested:  # the signal came while the process began
                    self._child.terminate()
                while (exit_code := self._child.poll()) is None:
                    _advance(bar, start_cost + job.cost * progress_fraction(run))
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._child.wait(_POLL_SECONDS)
            except BaseException:
                self._child.kill()
                self._child.wait()
                raise
            finally:
                self._child = None
        if exit_code == EXIT_DONE:
            write_json(run / FINISHED_FILE, {"arguments": list(job.arguments)})
            return None
        if self._stop_requested or exit_code == EXIT_PREEMPTED:
            raise Interrupted
        return _failure_reason(run, exit_code)

    def _wait_for_orphan(self, run: Path) -> None:
        """Lets a process go to its end that was left behind here by a command that was killed."""
        announced = False
        while not self._stop_requested and _is_locked(run / run_folder.LOCK):
            if not announced:
                owner = (run / run_folder.LOCK).read_text(encoding="utf-8").strip()
                _log(f"{run}: waiting for {owner}, which still trains there")
            announced = True
            time.sleep(_POLL_SECONDS)

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        self._stop_requested = True
        if self._child is not None:
            self._child.terminate()
        if signal_number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def is_finished(folder: Path, job: Job) -> bool:
    """Whether the cell has ended well, with the same arguments."""
    file = folder / job.name / FINISHED_FILE
    return file.exists() and run_folder.read_json(file) == {"arguments": list(job.arguments)}


def progress_fraction(run: Path) -> float:
    """Which share of its updates a run has made, by its own log; 0 before the first line."""
    try:
        config = run_folder.read_config(run)
        steps = sum(phase["steps"] for phase in config["train"]["phases"])
        row = json.loads(_last_lines(run / metrics.FILE)[-1])
        return min(1.0, row["step"] / steps)
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        UserError,
    ):  # not begun, or a line half written
        return 0.0


def _advance(bar: tqdm, done: float) -> None:
    bar.update(max(0.0, done - bar.n))


def _log(line: str) -> None:
    tqdm.write(line, file=sys.stderr)


def _failure_reason(run: Path, exit_code: int) -> str:
    """The last thing that a failed run said."""
    exit_text = (
        f"exit code {exit_code}"
        if exit_code > 0
        else f"killed by {signal.Signals(-exit_code).name}"
    )
    lines = _last_lines(run / LOG_FILE)
    errors = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    message = " ".join(lines[errors[-1] if errors else -1 :]).removeprefix("error: ")
    return f"{message or 'it said nothing'} ({exit_text}; {run / LOG_FILE})"


def _last_lines(file: Path) -> list[str]:
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        lines = stream.read().decode("utf-8", errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()]


def _is_locked(lock: Path) -> bool:
    if not lock.exists():
        return False
    with lock.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
