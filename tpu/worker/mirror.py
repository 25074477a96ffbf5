"""The run folder on this host and in the bucket, which is the truth of the two.

One run on all chips: host 0 mirrors its folder, all but the checkpoints, which the trainer writes
into the bucket itself. Lanes: each host mirrors the cells of its own lanes, checkpoints and all;
which these are, each lane leaves in lanes/lane-<i>-of-<n>.json. What cells have said may hold
secrets, so of logs and results a copy without them is mirrored.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from tpu import names
from tpu.worker import storage
from tpu.worker.host import Host
from tpu.worker.secret_manager import Redactor

CHECKPOINTS, FINISHED, LANES = "checkpoints", "finished.json", "lanes"
LOG = "log.txt"
_SPOKEN = (LOG, "results.json", "table.md", "table.html")  # the others quote the last line of logs
_PASSING = (
    r"(.*/)?lock$",
    r".*\.tmp$",
    r"(.*/)?\.[^/]*\.partial(/.*)?$",
    r"(.*/)?[^/]*\.orbax-checkpoint-tmp.*",
)
_NO_CHECKPOINTS = (rf"(.*/)?{CHECKPOINTS}/.*",)
_NO_SPOKEN = tuple(rf"(.*/)?{name}$" for name in _SPOKEN)


class PodRun:
    """The folder of one run on all chips.

    Args:
      number: of this host; host 0 alone mirrors.
    """

    def __init__(self, this: Host, number: int):
        self._run, self._number = this.run, number
        self._bucket = names.RunFolder(this.run_url)

    def fetch(self) -> None:
        """Makes the local folder what the bucket has, but for the checkpoints.

        Raises:
          StorageError: the bucket cannot be read.
        """
        _afresh(self._run)
        storage.bring(self._bucket.run, self._run, skip=_NO_CHECKPOINTS)

    def mirror(self) -> None:
        """Brings the bucket up to date.

        Raises:
          StorageError: it cannot be written.
        """
        if self._number == 0:
            storage.bring(self._run, self._bucket.run, skip=(*_NO_CHECKPOINTS, *_PASSING))

    def progress(self) -> int | None:
        """The step of the newest complete checkpoint; host 0 alone looks."""
        if self._number != 0:
            return None
        folder = self._bucket.checkpoints
        steps = sorted(int(n[:-1]) for n in storage.names(folder) if n[:-1].isdecimal())
        # The checksums are written last: a step without them is not complete.
        for step in reversed(steps):
            if "checksums.json" in storage.names(f"{folder}/{step}"):
                return step
        return None


class LanesRun:
    """The folder of GLUE's cells on lanes.

    Args:
      lanes: of this host.
      count: of the whole slice.

    Attributes:
      redact: blacks secrets out; none are known before it is set.
    """

    def __init__(self, this: Host, lanes: Iterable[int], count: int):
        self._run, self._lanes, self._count = this.run, list(lanes), count
        self._bucket = names.RunFolder(this.run_url)
        self._mirrored: set[str] = set()
        self._noted: set[int] = set()
        self._told: dict[Path, str] = {}
        self.redact = Redactor({})

    def fetch(self) -> None:
        """All that is in the bucket, but checkpoints only of own cells that are not finished.

        Raises:
          StorageError: the bucket cannot be read.
        """
        _afresh(self._run)
        storage.bring(self._bucket.run, self._run, skip=_NO_CHECKPOINTS)
        self._note_told()
        finished = (file.parent for file in self._run.glob(f"**/{FINISHED}"))
        self._mirrored = {cell.relative_to(self._run).as_posix() for cell in finished}
        for name in self._cells():
            if name not in self._mirrored and (self._run / name).is_dir():
                storage.bring(
                    f"{self._bucket.run}/{name}/{CHECKPOINTS}", self._run / name / CHECKPOINTS
                )

    def fetch_finished(self) -> None:
        """What other hosts' lanes have found; no checkpoints.

        Raises:
          StorageError: the bucket cannot be read.
        """
        storage.bring(self._bucket.run, self._run, skip=_NO_CHECKPOINTS)
        self._note_told()

    def mirror(self) -> None:
        """Brings the cells of own lanes in the bucket up to date.

        Raises:
          StorageError: it cannot be written.
        """
        for lane in self._lanes:
            file = self._lane_file(lane)
            if lane not in self._noted and file.exists():
                storage.copy(file, f"{self._bucket.run}/{LANES}/{file.name}")
                self._noted.add(lane)
        for name in self._cells():
            here = self._run / name
            if name in self._mirrored or not here.is_dir():
                continue
            finished = self._finished(name)  # looked at first: what is copied then is all of it
            self._bring(here, (*_PASSING, FINISHED))
            if finished:  # and said last
                storage.copy(here / FINISHED, self._url(here / FINISHED))
                self._mirrored.add(name)

    def mirror_table(self) -> None:
        """Settings, results, tables, and cells of others that were run again at the end.

        Raises:
          StorageError: they cannot be written.
        """
        self._bring(self._run, _PASSING)

    def progress(self) -> int:
        """How many cells are finished and in the bucket, as far as this host knows."""
        return len(self._mirrored)

    def _bring(self, here: Path, skip: tuple[str, ...]) -> None:
        """What was spoken goes without secrets, and line by line: half of one would be missed."""
        storage.bring(here, self._url(here), skip=(*skip, *_NO_SPOKEN))
        for file in _spoken(here):
            text = _text(file)
            plain = self.redact(text[: text.rfind("\n") + 1] if file.name == LOG else text)
            if self._told.get(file) != plain:
                storage.write(self._url(file), plain)
                self._told[file] = plain

    def _note_told(self) -> None:
        """What has just been fetched is what the bucket has."""
        self._told = {file: _text(file) for file in _spoken(self._run)}

    def _url(self, path: Path) -> str:
        below = path.relative_to(self._run).as_posix()
        return self._bucket.run if path == self._run else f"{self._bucket.run}/{below}"

    def _lane_file(self, lane: int) -> Path:
        return self._run / LANES / f"lane-{lane}-of-{self._count}.json"

    def _cells(self) -> list[str]:
        files = [file for file in map(self._lane_file, self._lanes) if file.exists()]
        return [name for file in files for name in json.loads(file.read_text())["jobs"]]

    def _finished(self, name: str) -> bool:
        return (self._run / name / FINISHED).exists()


def _spoken(folder: Path) -> list[Path]:
    return sorted(file for name in _SPOKEN for file in folder.rglob(name))


def _text(file: Path) -> str:
    return file.read_bytes().decode("utf-8", errors="replace")  # its ends of lines as they are


def _afresh(folder: Path) -> None:
    """What a former life on this machine has left, the bucket has too, or never had."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
