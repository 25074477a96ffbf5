"""Runs many commands of `bert-jax` one after another, each in its own folder and process.

    <output>/lock           held by the command that runs the jobs
             settings.json  the settings that all jobs share; other settings are an error
             compiled/      compiled programs: jobs that differ in the seed or the data share them
             <job>/         where the command writes, such as a run folder, and in addition
                    log.txt        its output
                    finished.json  its arguments, written when it has succeeded
             lanes/<i>-of-<n>/lock  held by the command that runs shard i of n
             results.json   the config and all numbers of the study

A process per job frees all memory at its end, including GPU memory, and limits a crash to one job.
A finished job is not run again. A job that was interrupted or killed resumes from its checkpoint.

Several commands can split the jobs of a folder into shards. The shard of a job depends only on the
list of jobs and the number of shards, so shards need no coordinator, can run on different machines,
and resume after a restart.
"""

import contextlib
import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, Protocol

from tqdm import tqdm

from bert_jax.apps.studies.result_page import ResultTable
from bert_jax.config.config_lib import diff
from bert_jax.errors import ConfigError, UserError
from bert_jax.io.atomic_io import write_json
from bert_jax.io.file_lock import AlreadyLockedError, acquire_lock, lock_owner
from bert_jax.io.json_io import read_json_object
from bert_jax.pretrained.folder import resolve_model_folder
from bert_jax.runs import metrics, run_folder
from bert_jax.runs.progress import format_duration
from bert_jax.train.compilation_cache import environment_with_cache
from bert_jax.train.preemption import (
    EXIT_DONE,
    EXIT_PREEMPTED,
    EXIT_USER_ERROR,
    signal_handlers,
)

logger = logging.getLogger(__name__)

SETTINGS_FILE, LOG_FILE, FINISHED_FILE = "settings.json", "log.txt", "finished.json"
COMMAND = (sys.executable, "-m", "bert_jax")
FOLDER_PLACEHOLDER = "{folder}"
"""Stands for the folder of a job in its arguments."""
_POLL_SECONDS = 0.5

FOLDER = "lanes"
STARTUP_COST = 10_000.0
"""The cost of starting a process and compiling, in examples: as much as a small task."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Describes one command.

    Attributes:
      name: its folder, relative to the output folder.
      arguments: the arguments of `bert-jax`; "{folder}" stands for the folder of the job.
      cost: how long it takes, in any unit that all jobs of a command share.
      group: jobs of one group run in the same shard, in their order; "": a group of its own.
      requires: the names of jobs that must have succeeded.
    """

    name: str
    arguments: tuple[str, ...]
    cost: float = 1.0
    group: str = ""
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobShard:
    """Identifies one of `count` shards by its index from 0 to `count` - 1."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ConfigError(f"--shard {self.index}: expected a number from 0 to {self.count - 1}")

    def __str__(self) -> str:
        return f"shard {self.index} of {self.count}"

    def select_jobs(self, jobs: Sequence[Job]) -> list[Job]:
        """Returns the jobs of this shard, the group that takes longest first."""
        return assign(jobs, self.count)[self.index]


def assign(jobs: Sequence[Job], count: int) -> list[list[Job]]:
    """Assigns every group of jobs to one of `count` shards: longest first, to the least loaded.

    The largest load is then at most 4/3 of the optimum (Graham 1969). Ties are broken by the names
    of groups and the indices of shards. The jobs of a group stay in their order.
    """
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.group or job.name, []).append(job)
    costs = {name: sum(job.cost for job in group) for name, group in groups.items()}
    shards: list[list[Job]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for name in sorted(groups, key=lambda name: (-costs[name], name)):
        least_loaded = loads.index(min(loads))
        shards[least_loaded] += groups[name]
        loads[least_loaded] += costs[name] + STARTUP_COST * len(groups[name])
    return shards


@contextlib.contextmanager
def locked(output: Path, shard: JobShard) -> Generator[None]:
    """Locks a shard, and keeps commands without shards from using the folder.

    Raises:
      UserError: another process runs this shard, or all jobs.
    """
    with run_folder.lock_run_folder(output / FOLDER / f"{shard.index}-of-{shard.count}"):
        try:
            lock = acquire_lock(
                output / run_folder.LOCK, owner="a command with --num-shards", shared=True
            )
        except AlreadyLockedError as error:
            raise UserError(
                f"{output} is in use: {error.owner} runs all jobs there; wait for it or stop it"
            ) from None
        with lock:
            yield


@contextlib.contextmanager
def exclusive(output: Path) -> Generator[None]:
    """Locks the files that all shards of a study share (settings.json) against other processes.

    Waits while another shard holds the lock. Enter it inside `locked`, which creates the folder.
    """
    with acquire_lock(output / FOLDER / run_folder.LOCK, wait=True):
        yield


class Interrupted(Exception):
    """Reports that a signal asked to stop; the active run has saved a checkpoint."""


class JobRunner:
    """Runs jobs in a folder, which it locks while it is used as a context manager.

    The first SIGTERM or Ctrl-C is forwarded to the active run, which saves and exits; a second
    Ctrl-C kills it. The context must be entered on the main thread.

    Args:
      folder: the output folder; it is created if necessary.
      command: the beginning of each run's command line.
      shard: run only the jobs of this shard; the folder is then shared with the other shards.

    Raises:
      UserError: another command uses the folder or the shard.
    """

    def __init__(
        self,
        folder: Path,
        command: Sequence[str] = COMMAND,
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
            self._stack.enter_context(locked(self._folder, self._shard))
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
        """Writes the settings that all jobs share, or compares them with the folder's.

        Raises:
          UserError: the folder was created with other settings; the message lists them.
        """
        if self._shard is None:
            _write_or_check_settings(self._folder / SETTINGS_FILE, settings)
        else:
            with exclusive(self._folder):
                _write_or_check_settings(self._folder / SETTINGS_FILE, settings)

    def run_first(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Runs jobs that all shards need; the others wait while one shard runs them.

        Returns and raises as `run`.
        """
        if self._shard is None:
            return self._run_all(jobs)
        with exclusive(self._folder):
            return self._run_all(jobs)

    def run(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Runs the unfinished jobs in the given order.

        Args:
          jobs: all jobs of the study; a shard selects its own, longest first.

        Returns:
          {name of a failed job: reason}; all other jobs are finished.

        Raises:
          Interrupted: a signal asked to stop.
        """
        if self._shard is not None:
            all_jobs, jobs = jobs, self._shard.select_jobs(jobs)
            logger.info("%s: %d of %d runs", self._shard, len(jobs), len(all_jobs))
        return self._run_all(jobs)

    def _run_all(self, jobs: Sequence[Job]) -> dict[str, str]:
        failed: dict[str, str] = {}
        pending = [job for job in jobs if not is_finished(self._folder, job)]
        if len(pending) < len(jobs):
            num_finished = len(jobs) - len(pending)
            logger.info("%d of %d runs are already finished", num_finished, len(jobs))
        total, start_time, done_cost = sum(job.cost for job in pending), time.monotonic(), 0.0
        bar_format = "{desc} {percentage:3.0f}%|{bar}| {elapsed} elapsed, {remaining} left"
        with tqdm(total=total, bar_format=bar_format, disable=None) as bar:
            for number, job in enumerate(pending, start=1):
                bar.set_description_str(f"[{number}/{len(pending)}] {job.name}")
                missing = [name for name in job.requires if name in failed]
                reason = f"{missing[0]} has failed" if missing else self._run_one(job, bar)
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
                logger.info(
                    "[%d/%d] %s %s (%s elapsed%s)",
                    number,
                    len(pending),
                    job.name,
                    status,
                    format_duration(elapsed),
                    remaining,
                )
        return failed

    def _run_one(self, job: Job, bar: "tqdm[NoReturn]") -> str | None:
        """Runs a job and returns the reason why it failed, or None if it succeeded."""
        run, start_cost = self._folder / job.name, bar.n
        run.mkdir(parents=True, exist_ok=True)
        # A killed command leaves its run behind, which holds the lock of the run folder.
        self._wait_for_orphan(run)
        if self._stop_requested:
            raise Interrupted
        with (run / LOG_FILE).open("ab") as log:
            self._child = subprocess.Popen(
                [
                    *self._command,
                    *(each.replace(FOLDER_PLACEHOLDER, str(run)) for each in job.arguments),
                ],
                # Jobs of a study differ in seed and data, not in the program: the first one
                # compiles for all.
                env=environment_with_cache(self._folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                if self._stop_requested:  # the signal arrived while the process was starting
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
        """Waits for a run that an earlier, killed command has left behind in the folder."""
        announced = False
        while not self._stop_requested and (owner := lock_owner(run / run_folder.LOCK)):
            if not announced:
                logger.info("%s: waiting for %s, which is still training there", run, owner)
            announced = True
            time.sleep(_POLL_SECONDS)

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        self._stop_requested = True
        if self._child is not None:
            self._child.terminate()
        if signal_number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class Study(Protocol):
    """Defines the protocol of a comparison of runs in one output folder."""

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the settings that may not change when the study is resumed."""
        ...

    def run(self, runner: JobRunner) -> dict[str, str]:
        """Runs what is not finished; returns {name of a failed job: reason}."""
        ...

    def results(self, failed: Mapping[str, str]) -> dict[str, Any]:
        """Returns the config and all numbers of the finished runs as JSON values."""
        ...

    def write_table(self, results: dict[str, Any]) -> ResultTable:
        """Writes table.md and table.html."""
        ...


def run_study(
    study: Study, output: Path, *, model: str | None = None, shard: JobShard | None = None
) -> int:
    """Runs a study, writes its results and prints its table; a shard only runs its jobs.

    Args:
      study: the study.
      output: its folder.
      model: the model of all runs, which is looked for before any run is started.
      shard: the part of the jobs to run; None for all.

    Returns:
      The exit code: 0, 1 if a run failed, 75 if a signal asked to stop.
    """
    with JobRunner(output, shard=shard) as runner:
        if model is not None:
            resolve_model_folder(model)
        runner.write_or_check_settings(study.settings)
        try:
            failed = study.run(runner)
        except Interrupted:
            logger.info("stopped; run the same command to resume")
            return EXIT_PREEMPTED
        if shard is None:
            results = study.results(failed)
            write_json(output / "results.json", results)
            print(study.write_table(results).markdown(), end="")
    for job, reason in failed.items():
        logger.error("%s failed: %s", job, reason)
    return EXIT_USER_ERROR if failed else EXIT_DONE


def is_finished(folder: Path, job: Job) -> bool:
    """Returns whether a job has succeeded with the same arguments."""
    file = folder / job.name / FINISHED_FILE
    if not file.exists():
        return False
    saved_arguments = read_json_object(file).get("arguments")
    if not isinstance(saved_arguments, list):
        return False
    # The flag and its value separately, because the value may be another spelling of a path.
    saved, current = (
        [str(argument).split("=", 1) for argument in arguments]
        for arguments in (saved_arguments, job.arguments)
    )
    return not diff(saved, current)


def progress_fraction(run: Path) -> float:
    """Returns the fraction of its steps that a run has completed, from its metrics; 0 if none."""
    try:
        config = run_folder.read_config(run)
        steps = sum(phase["steps"] for phase in config["train"]["phases"])
        row = json.loads(metrics.last_lines(run / metrics.FILE)[-1])
        return min(1.0, row["step"] / steps)
    except (OSError, ValueError, LookupError, TypeError, UserError):
        # The run has not started, or its last line is only half written.
        return 0.0


def _write_or_check_settings(file: Path, settings: dict[str, Any]) -> None:
    if not file.exists():
        write_json(file, settings)
        return
    # A round trip through JSON, because settings.json has lists where `settings` has tuples.
    changes = diff(read_json_object(file), json.loads(json.dumps(settings)))
    if changes:
        lines = "".join(f"\n  {path}: was {old!r}, now {new!r}" for path, old, new in changes)
        raise UserError(
            f"{file.parent} was created with other settings:{lines}\n"
            "use the old values, or choose another --output"
        )


def _advance(bar: "tqdm[NoReturn]", done: float) -> None:
    bar.update(max(0.0, done - bar.n))


def _failure_reason(run: Path, exit_code: int) -> str:
    """Returns the last error message of a failed run, or its last line of output."""
    exit_text = (
        f"exit code {exit_code}"
        if exit_code > 0
        else f"killed by {signal.Signals(-exit_code).name}"
    )
    lines = metrics.last_lines(run / LOG_FILE)
    errors = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    message = " ".join(lines[errors[-1] if errors else -1 :]).removeprefix("error: ")
    return f"{message or 'no output'} ({exit_text}; {run / LOG_FILE})"
