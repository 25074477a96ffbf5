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

from bert_jax.aside import write_json
from bert_jax.errors import ConfigError, UserError
from bert_jax.train import run_folder

FOLDER = "lanes"
START = 10_000.0
"""What it costs to start a process and to compile, in rows read: as much as a small task."""


class Work(Protocol):
    """What has a name and takes time."""

    @property
    def name(self) -> str:
        """Different for each."""
        ...

    @property
    def work(self) -> float:
        """Rows that it reads."""
        ...


C = TypeVar("C", bound=Work)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One of several: `number` is 0 to `count` - 1."""

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.count:
            raise ConfigError(
                f"lane {self.number} of {self.count}: expected --lane 0 to {self.count - 1}"
            )

    def __str__(self) -> str:
        return f"lane {self.number} of {self.count}"

    def share(self, cells: Sequence[C]) -> list[C]:
        """Its cells, longest first."""
        return pack(cells, self.count)[self.number]

    def write(self, output: Path, cells: Sequence[Work]) -> None:
        """Leaves a note of its cells, for whoever copies what this lane writes."""
        file = output / FOLDER / f"lane-{self.number}-of-{self.count}.json"
        note = {"cells": [cell.name for cell in cells], "work": sum(cell.work for cell in cells)}
        write_json(file, note)


def pack(cells: Sequence[C], count: int) -> list[list[C]]:
    """Every cell on one of `count` lanes: longest first, each on the lane that has least to do.

    No lane then has more than 4/3 of what the best division would give the longest one (Graham
    1969). Equal cells go by their names, equal lanes by their numbers.
    """
    lanes: list[list[C]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for cell in sorted(cells, key=lambda cell: (-cell.work, cell.name)):
        least = loads.index(min(loads))
        lanes[least].append(cell)
        loads[least] += cell.work + START
    return lanes


@contextlib.contextmanager
def locked(output: Path, lane: Lane) -> Iterator[None]:
    """Holds a lane, and keeps a command without lanes out of the whole folder.

    Raises:
      UserError: another process runs this lane, or all cells.
    """
    with run_folder.locked(output / FOLDER / f"{lane.number}-of-{lane.count}"):
        with (output / run_folder.LOCK).open("a+", encoding="utf-8") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                stream.seek(0)
                holder = stream.read().strip() or "another process"
                raise UserError(
                    f"{output} is in use: {holder} runs all cells there; wait for it or stop it"
                ) from None
            stream.truncate(0)
            stream.write("a command with --lanes\n")
            stream.flush()
            yield


@contextlib.contextmanager
def in_turn(output: Path) -> Iterator[None]:
    """One lane after the other, for what all of them look at and the first one writes."""
    with (output / FOLDER / run_folder.LOCK).open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
