"""Splits the jobs of a study into shards that independent processes run.

The shard of a job depends only on the list of jobs and the number of shards. Shards thus need no
coordinator, can run on different machines, and resume after a restart.

    <output>/lanes/<i>-of-<n>/lock    held by the command that runs the shard
"""

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from bert_jax.errors import ConfigError, UserError
from bert_jax.io.file_lock import AlreadyLockedError, acquire_lock
from bert_jax.runs import run_folder

FOLDER = "lanes"
STARTUP_COST = 10_000.0
"""The cost of starting a process and compiling, in examples: as much as a small task."""


class HasCost(Protocol):
    """Defines the protocol of a job that can be assigned to a shard."""

    @property
    def name(self) -> str:
        """Returns the unique name of the job."""
        ...

    @property
    def cost(self) -> float:
        """Returns the cost of the job in examples read."""
        ...


JobT = TypeVar("JobT", bound=HasCost)


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

    def select_jobs(self, jobs: Sequence[JobT]) -> list[JobT]:
        """Returns the jobs of this shard, longest first."""
        return assign(jobs, self.count)[self.index]


def assign(jobs: Sequence[JobT], count: int) -> list[list[JobT]]:
    """Assigns every job to one of `count` shards: longest first, to the least loaded shard.

    The largest load is then at most 4/3 of the optimum (Graham 1969). Ties are broken by the names
    of jobs and the indices of shards.
    """
    shards: list[list[JobT]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for job in sorted(jobs, key=lambda job: (-job.cost, job.name)):
        least_loaded = loads.index(min(loads))
        shards[least_loaded].append(job)
        loads[least_loaded] += job.cost + STARTUP_COST
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
