"""Copies the run folder between this host and the bucket, which has the authoritative copy.

Pod mode: host 0 copies its folder to the bucket, except the checkpoints, which the trainer writes
to the bucket itself. Shards mode: each host copies the jobs of its own shards with their
checkpoints; each shard lists its jobs in lanes/lane-<i>-of-<n>.json. Output of jobs may contain
secrets, so logs and results are copied with the secrets replaced.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from tpu import bucket_layout
from tpu.worker import storage
from tpu.worker.host_context import HostContext
from tpu.worker.log import Redactor

CHECKPOINTS, FINISHED, SHARDS = "checkpoints", "finished.json", "lanes"
JOB_LOG = "log.txt"
_REDACTED_FILES = (JOB_LOG, "results.json", "table.md", "table.html")
"""Files that may contain secrets; the last three quote the last lines of logs."""
_TEMPORARY_FILES = (
    r"(.*/)?lock$",
    r".*\.tmp$",
    r"(.*/)?\.[^/]*\.partial(/.*)?$",
    r"(.*/)?[^/]*\.orbax-checkpoint-tmp.*",
)
_EXCLUDE_CHECKPOINTS = (rf"(.*/)?{CHECKPOINTS}/.*",)
_EXCLUDE_REDACTED = tuple(rf"(.*/)?{name}$" for name in _REDACTED_FILES)


class PodSync:
    """Synchronizes the folder of one run on all chips; only host 0 writes to the bucket."""

    def __init__(self, context: HostContext, host_number: int):
        self._run_folder, self._host_number = context.run_folder, host_number
        self._bucket = bucket_layout.RunFolder(context.run_url)

    def fetch(self) -> None:
        """Replaces the local folder by the bucket's copy, without checkpoints.

        Raises:
          StorageError: the bucket cannot be read.
        """
        _recreate_folder(self._run_folder)
        storage.rsync(self._bucket.run, self._run_folder, exclude=_EXCLUDE_CHECKPOINTS)

    def mirror(self) -> None:
        """Copies new and changed files to the bucket.

        Raises:
          StorageError: it cannot be written.
        """
        if self._host_number == 0:
            storage.rsync(
                self._run_folder,
                self._bucket.run,
                exclude=(*_EXCLUDE_CHECKPOINTS, *_TEMPORARY_FILES),
            )

    def progress(self) -> int | None:
        """Returns the step of the newest complete checkpoint; None on other hosts than host 0."""
        if self._host_number != 0:
            return None
        folder = self._bucket.checkpoints
        steps = sorted(int(n[:-1]) for n in storage.list_names(folder) if n[:-1].isdecimal())
        # The checksums are written last: a step without them is not complete.
        for step in reversed(steps):
            if "checksums.json" in storage.list_names(f"{folder}/{step}"):
                return step
        return None


class ShardedSync:
    """Synchronizes a folder of jobs (the runs of `bert-jax glue`) that are spread over shards.

    Args:
      shards: the shards of this host.
      num_shards: the shards of the whole slice.

    Attributes:
      redact: replaces secrets in a text; replaces nothing until it is set.
    """

    def __init__(self, context: HostContext, shards: Iterable[int], num_shards: int):
        self._run_folder, self._num_shards = context.run_folder, num_shards
        self._shards = list(shards)
        self._bucket = bucket_layout.RunFolder(context.run_url)
        self._mirrored_jobs: set[str] = set()
        self._uploaded_shards: set[int] = set()
        self._uploaded_texts: dict[Path, str] = {}
        self.redact = Redactor({})

    def fetch(self) -> None:
        """Fetches the bucket's copy; checkpoints only of this host's unfinished jobs.

        Raises:
          StorageError: the bucket cannot be read.
        """
        _recreate_folder(self._run_folder)
        storage.rsync(self._bucket.run, self._run_folder, exclude=_EXCLUDE_CHECKPOINTS)
        self._record_texts()
        finished_files = (file.parent for file in self._run_folder.glob(f"**/{FINISHED}"))
        self._mirrored_jobs = {
            job_folder.relative_to(self._run_folder).as_posix() for job_folder in finished_files
        }
        for name in self._job_names():
            if name not in self._mirrored_jobs and (self._run_folder / name).is_dir():
                storage.rsync(
                    f"{self._bucket.run}/{name}/{CHECKPOINTS}",
                    self._run_folder / name / CHECKPOINTS,
                )

    def fetch_results(self) -> None:
        """Fetches the results of the other hosts' jobs, without checkpoints.

        Raises:
          StorageError: the bucket cannot be read.
        """
        storage.rsync(self._bucket.run, self._run_folder, exclude=_EXCLUDE_CHECKPOINTS)
        self._record_texts()

    def mirror(self) -> None:
        """Copies the jobs of this host's shards to the bucket.

        Raises:
          StorageError: it cannot be written.
        """
        for shard in self._shards:
            file = self._shard_file(shard)
            if shard not in self._uploaded_shards and file.exists():
                storage.copy(file, f"{self._bucket.run}/{SHARDS}/{file.name}")
                self._uploaded_shards.add(shard)
        for name in self._job_names():
            job_folder = self._run_folder / name
            if name in self._mirrored_jobs or not job_folder.is_dir():
                continue
            # Read before the files are copied: if the job is finished now, the copy is complete.
            is_finished = self._is_finished(name)
            self._mirror_redacted(job_folder, (*_TEMPORARY_FILES, FINISHED))
            if is_finished:  # copied last: its presence means that everything else is there
                storage.copy(job_folder / FINISHED, self._url(job_folder / FINISHED))
                self._mirrored_jobs.add(name)

    def mirror_results(self) -> None:
        """Copies settings, results, tables, and other hosts' jobs that were repeated at the end.

        Raises:
          StorageError: they cannot be written.
        """
        self._mirror_redacted(self._run_folder, _TEMPORARY_FILES)

    def progress(self) -> int:
        """Returns how many finished jobs in the bucket this host knows of."""
        return len(self._mirrored_jobs)

    def _mirror_redacted(self, folder: Path, exclude: tuple[str, ...]) -> None:
        """Uploads logs redacted and in whole lines: half of a secret would not be recognized."""
        storage.rsync(folder, self._url(folder), exclude=(*exclude, *_EXCLUDE_REDACTED))
        for file in _redacted_files(folder):
            text = _read_text(file)
            redacted = self.redact(text[: text.rfind("\n") + 1] if file.name == JOB_LOG else text)
            if self._uploaded_texts.get(file) != redacted:
                storage.write(self._url(file), redacted)
                self._uploaded_texts[file] = redacted

    def _record_texts(self) -> None:
        """Remembers the texts that were just fetched, so that they are not uploaded again."""
        self._uploaded_texts = {
            file: _read_text(file) for file in _redacted_files(self._run_folder)
        }

    def _url(self, path: Path) -> str:
        relative = path.relative_to(self._run_folder).as_posix()
        return self._bucket.run if path == self._run_folder else f"{self._bucket.run}/{relative}"

    def _shard_file(self, shard: int) -> Path:
        return self._run_folder / SHARDS / f"lane-{shard}-of-{self._num_shards}.json"

    def _job_names(self) -> list[str]:
        files = [file for file in map(self._shard_file, self._shards) if file.exists()]
        return [name for file in files for name in json.loads(file.read_text())["jobs"]]

    def _is_finished(self, name: str) -> bool:
        return (self._run_folder / name / FINISHED).exists()


def _redacted_files(folder: Path) -> list[Path]:
    return sorted(file for name in _REDACTED_FILES for file in folder.rglob(name))


def _read_text(file: Path) -> str:
    return file.read_bytes().decode("utf-8", errors="replace")  # keeps line endings as they are


def _recreate_folder(folder: Path) -> None:
    """Empties a folder: files of an earlier attempt on this machine may be outdated."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
