"""Fakes `gcloud storage`: cp, cat, ls, rsync, rm and buckets; buckets are folders."""

import contextlib
import fcntl
import fnmatch
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from tests.helpers.tpu.fake_gcloud.parsing import CloudError, Parsed
from tests.helpers.tpu.fake_gcloud.script import Script

CP = {"--recursive": "switch"}
RSYNC = {"--recursive": "switch", "--exclude": "value"}
LS = {"--recursive": "switch"}
RM = {"--recursive": "switch"}


class Storage:
    """Fakes the objects of all buckets, below `root/gcs`."""

    def __init__(self, root: Path, script: Script):
        self._root, self._script = root, script
        self._gcs = root / "gcs"
        self._gcs.mkdir(parents=True, exist_ok=True)

    def cp(self, given: Parsed) -> None:
        """Copies files and objects; `-` is stdin or stdout; wildcards; folders with --recursive."""
        *sources, target = given.positional
        if not sources:
            raise CloudError("argument DESTINATION: Must be specified.", 2)
        expanded = [path for source in sources for path in self._sources(source, "cp")]
        into = len(expanded) > 1 or target.endswith("/")
        for source in expanded:
            if target == "-":
                sys.stdout.buffer.write(Path(source).read_bytes())
                continue
            there = self._path(target, write=is_url(target))
            inside = into or (not is_url(target) and there.is_dir())
            if isinstance(source, Path) and source.is_dir():
                if not given.has("--recursive"):
                    raise CloudError(f"Omitting prefix {source.name}: use --recursive")
                base = there / source.name if inside or there.is_dir() else there
                for file in files_below(source):
                    self._write(file, base / file.relative_to(source))
            else:
                name = "stdin" if source == "-" else Path(source).name
                self._write(source, there / name if inside else there)

    def cat(self, given: Parsed) -> None:
        """Prints objects to stdout."""
        for url in given.positional:
            for path in self._sources(url, "cat"):
                assert isinstance(path, Path)
                sys.stdout.buffer.write(path.read_bytes())

    def ls(self, given: Parsed) -> None:
        """Lists one level with `/` after prefixes; all objects with `**` or --recursive."""
        for url in given.positional or ["gs://"]:
            lines = list(self._listing(url, given))
            if not lines:
                raise CloudError("One or more URLs matched no objects.")
            print(*lines, sep="\n")

    def rsync(self, given: Parsed) -> None:
        """Copies new and changed files; skips relative paths that --exclude matches."""
        source, target = given.positional
        there, here = self._path(target, write=is_url(target)), self._path(source)
        if not here.is_dir():
            if is_url(source):
                raise CloudError(f"Did not find existing container at: {source}")
            raise CloudError(f"Source is not a directory: {source}")
        skip = re.compile(given.flags["--exclude"]) if given.has("--exclude") else None
        wanted = {}
        for file in files_below(here):
            name = file.relative_to(here).as_posix()
            deep = "/" in name and not given.has("--recursive")
            if not deep and not (skip and skip.match(name)):
                wanted[name] = file
        for name, file in wanted.items():
            with contextlib.suppress(FileNotFoundError):  # the file was removed in the meantime
                if not same(file, there / name):
                    self._write(file, there / name)

    def rm(self, given: Parsed) -> None:
        """Removes objects; with --recursive whole prefixes."""
        for path in [path for url in given.positional for path in self._sources(url, "rm")]:
            assert isinstance(path, Path)
            with self._locked():
                if path.is_dir() and given.has("--recursive"):
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def describe_bucket(self, given: Parsed) -> None:
        """Prints the location; other formats are not faked."""
        (url,) = given.positional
        bucket = url.removeprefix("gs://").strip("/")
        location = self._script.bucket_location(bucket)
        if location is None:
            raise CloudError(f"{url} not found: 404.")
        self._script.deny_storage("read", url)
        print({"value(location)": location}[given.value("--format")])

    def _listing(self, url: str, given: Parsed) -> Iterator[str]:
        deep = given.has("--recursive") or url.endswith("**")
        for path in self._sources(url.removesuffix("**"), "ls", strict=False):
            assert isinstance(path, Path)
            if path.is_file():
                yield self._url(path)
            elif path.is_dir():
                below = files_below(path) if deep else sorted(path.iterdir())
                yield from (self._url(p) + ("/" if p.is_dir() else "") for p in below)

    def _sources(self, name: str, verb: str, strict: bool = True) -> list[Path | str]:
        """Returns the files that a source names; wildcards match one level, `**` all levels."""
        if name == "-":
            return ["-"]
        if any(letter in name for letter in "*?["):
            fixed = re.split(r"[*?\[]", name, maxsplit=1)[0].rpartition("/")[0]
            base = self._path(fixed)
            pattern = name[len(fixed) + 1 :]
            found = [
                path
                for path in (base.rglob("*") if base.is_dir() else ())
                if fnmatch.fnmatchcase(path.relative_to(base).as_posix(), pattern)
                and path.is_file() | ("**" not in pattern)
                and ("**" in pattern or len(path.relative_to(base).parts) == pattern.count("/") + 1)
            ]
            if found:
                return sorted(found)
        elif (path := self._path(name)).exists():
            return [path]
        if strict:
            raise CloudError(f"The following URLs matched no objects or files:\n-{name}")
        return []

    def _path(self, name: str, write: bool = False) -> Path:
        if not is_url(name):
            return Path(name)
        self._script.deny_storage("write" if write else "read", name)
        path = self._gcs / name.removeprefix("gs://").rstrip("/")
        bucket = path.relative_to(self._gcs).parts[0] if name != "gs://" else ""
        if bucket and self._script.bucket_location(bucket) is None:
            raise CloudError(f"gs://{bucket} not found: 404.")
        return path

    def _url(self, path: Path) -> str:
        return f"gs://{path.relative_to(self._gcs).as_posix()}"

    def _write(self, source: Path | str, target: Path) -> None:
        """Writes a temporary file and renames it under a lock, as objects appear at once."""
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        with self._locked():
            target.parent.mkdir(parents=True, exist_ok=True)
            # Temporary files are outside the buckets, or listings would show them.
            handle, temporary = tempfile.mkstemp(dir=self._root, prefix="temporary-")
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        with (self._root / "gcs.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def is_url(name: str) -> bool:
    """Returns whether an argument is a URL in a bucket."""
    return name.startswith("gs://")


def files_below(folder: Path) -> list[Path]:
    """Returns all files below a folder, in order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def same(one: Path, other: Path) -> bool:
    """Returns whether two files have the same content."""
    return (
        other.is_file()
        and one.stat().st_size == other.stat().st_size
        and one.read_bytes() == other.read_bytes()
    )


COMMANDS: dict[str, tuple[Callable[[Storage, Parsed], None], dict[str, str]]] = {
    "cp": (Storage.cp, CP),
    "cat": (Storage.cat, {}),
    "ls": (Storage.ls, LS),
    "rsync": (Storage.rsync, RSYNC),
    "rm": (Storage.rm, RM),
    "buckets describe": (Storage.describe_bucket, {}),
}
