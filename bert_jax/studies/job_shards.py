"""Lanes: the cells of a study dealt out to several processes that know nothing of each other.

Which lane a cell belongs to follows from the cells and the number of lanes alone, so lanes need no
coordinator, can be on different machines, and go on after a restart where they were.

    <output>/lanes/lane-<i>-of-<n>.json    the cells of a lane, in its order
                   <i>-of-<n>/lock         held by the command that runs it
"""

import contextlib
import fcntl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from bert_jax.atomic_io import write_json
from bert_jax.errors import ConfigError, UserError
from bert_jax.runs import run_folder

FOLDER = "lanes"
STARTUP_COST = 10_000.0
"""What it costs to start a process and to compile, in rows read: as much as a small task."""


class HasCost(Protocol):
    """What has a name and takes time."""

    @property
    def name(self) -> str:
        """Different for each."""
        ...

    @property
    def cost(self) -> float:
        """Rows that it reads."""
        ...


JobT = TypeVar("JobT", bound=HasCost)


@dataclass(frozen=True, kw_only=True)
class JobShard:
    """One of several: `number` is 0 to `count` - 1."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ConfigError(
                f"shard {self.index} of {self.count}: expected --shard 0 to {self.count - 1}"
            )

    def __str__(self) -> str:
        return f"shard {self.index} of {self.count}"

    def select_jobs(self, jobs: Sequence[JobT]) -> list[JobT]:
        """Its cells, longest first."""
        return assign(jobs, self.count)[self.index]

    def write_manifest(self, output: Path, jobs: Sequence[HasCost]) -> None:
        """Leaves a note of its cells, for whoever copies what this lane writes."""
        file = output / FOLDER / f"lane-{self.index}-of-{self.count}.json"
        manifest = {"jobs": [job.name for job in jobs], "cost": sum(job.cost for job in jobs)}
        write_json(file, manifest)


def assign(jobs: Sequence[JobT], count: int) -> list[list[JobT]]:
    """Every cell on one of `count` lanes: longest first, each on the lane that has least to do.

    No lane then has more than 4/3 of what the best division would give the longest one (Graham
    1969). Equal cells go by their names, equal lanes by their numbers.
    """
    shards: list[list[JobT]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for job in sorted(jobs, key=lambda job: (-job.cost, job.name)):
        least_loaded = loads.index(min(loads))
        shards[least_loaded].append(job)
        loads[least_loaded] += job.cost + STARTUP_COST
    return shards


@contextlib.contextmanager
def locked(output: Path, shard: JobShard) -> Iterator[None]:
    """Holds a lane, and keeps a command without lanes out of the whole folder.

    Raises:
      UserError: another process runs this lane, or all cells.
    """
    with run_folder.lock_run_folder(output / FOLDER / f"{shard.index}-of-{shard.count}"):
        with (output / run_folder.LOCK).open("a+", encoding="utf-8") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                stream.seek(0)
                owner = stream.read().strip() or "another process"
                raise UserError(
                    f"{output} is in use: {owner} runs all cells there; wait for it or stop it"
                ) from None
            stream.truncate(0)
            stream.write("a command with --num-shards\n")
            stream.flush()
            yield


@contextlib.contextmanager
def exclusive(output: Path) -> Iterator[None]:
    """One lane after the other, for what all of them look at and the first one writes."""
    with (output / FOLDER / run_folder.LOCK).open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
