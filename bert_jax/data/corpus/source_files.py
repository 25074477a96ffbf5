"""Finds the files of a source, and copies remote ones to this machine while they are read.

Paths such as gs://bucket/crawl/*.warc.gz, s3://... and hf://datasets/... are opened by fsspec. All
other code reads local files only, because archives and tables are read in any order of their bytes.
"""

import contextlib
import glob
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from bert_jax.errors import ConfigError, MissingExtraError, UserError
from bert_jax.io.parent_process import is_running
from bert_jax.text.files import expand_globs

# What file systems name the version of a file, the most exact one first.
_VERSION_KEYS = (
    *("generation", "md5Hash", "ETag", "etag", "blob_id", "Content-MD5", "mtime", "LastModified"),
    *("updated", "Last-Modified", "last_modified", "created"),
)


@dataclass(frozen=True)
class SourceFile:
    """Describes a file: path, size in bytes, and a number that changes with its content.

    `version` is the time of the last change in nanoseconds; of a remote file, a hash of the version
    that its file system names.
    """

    path: str
    size_bytes: int
    version: int

    @classmethod
    def from_path(cls, path: str) -> "SourceFile":
        file_stat = os.stat(path)
        return cls(path, file_stat.st_size, file_stat.st_mtime_ns)

    @property
    def text_bytes(self) -> int:
        """Bytes of text, for the progress bar. A gzip file stores this size modulo 2^32."""
        if not self.path.endswith(".gz") or self.size_bytes < 18 or is_remote(self.path):
            return self.size_bytes
        with open(self.path, "rb") as file:
            file.seek(-4, os.SEEK_END)
            return max(self.size_bytes, int.from_bytes(file.read(4), "little"))


_File = TypeVar("_File", bound=SourceFile)


def find_source_files(patterns: Sequence[str]) -> tuple[SourceFile, ...]:
    """Returns the files that match names and glob patterns, local or remote, sorted by path.

    Raises:
      UserError: a pattern matches no file, all files are empty, or a remote folder cannot be read.
    """
    local = [pattern for pattern in patterns if not is_remote(pattern)]
    found = {path: SourceFile.from_path(path) for path in (expand_globs(local) if local else ())}
    for pattern in patterns:
        if is_remote(pattern):
            found.update((file.path, file) for file in _find_remote_files(pattern))
    if not sum(file.size_bytes for file in found.values()):
        raise UserError(f"{', '.join(patterns)}: every file is empty")
    return tuple(found[path] for path in sorted(found))


def is_remote(path: str) -> bool:
    """Returns whether a path or pattern names a file system, as in gs://bucket/file."""
    return "://" in path


@contextlib.contextmanager
def local_file(file: _File) -> Generator[_File]:
    """Yields a local file as it is, and a remote one as a copy that is removed at the end.

    Messages of errors name the remote file.

    Raises:
      UserError: the file cannot be read, or is not as long as when it was listed.
    """
    if not is_remote(file.path):
        yield file
        return
    prefix = f"bert_jax-{os.uname().nodename[:40]}-"
    # A killed process cannot remove its own copies, which may be large.
    _remove_copies_of_ended_processes(prefix)
    with tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}-") as folder:
        path = Path(folder) / file.path.rpartition("/")[2]
        download(file.path, path)
        if path.stat().st_size != file.size_bytes:
            raise UserError(
                f"{file.path}: ends at byte {path.stat().st_size:,}, expected "
                f"{file.size_bytes:,}; run the same command again"
            )
        with renamed_in_errors(str(path), file.path):
            yield replace(file, path=str(path))


def _remove_copies_of_ended_processes(prefix: str) -> None:
    """Removes the temporary folders of processes of this host that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{glob.escape(prefix)}*"):
        found = re.fullmatch(r"(\d+)-\w+", path.name.removeprefix(prefix))
        if found and not is_running(int(found[1])):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def renamed_in_errors(path: str, name: str) -> Generator[None]:
    """Puts `name` in the place of `path` in the message of a UserError that the block raises."""
    try:
        yield
    except UserError as error:
        error.args = (str(error).replace(path, name),)
        raise


def download(url: str, path: Path) -> None:
    """Copies a remote file to this machine.

    Raises:
      UserError: it cannot be read.
    """
    system, name = open_file_system(url)
    with _as_user_error(url, "read"):
        system.get_file(name, str(path))


def upload(path: Path, url: str) -> None:
    """Copies a file to a remote file system, and compares the sizes.

    Raises:
      UserError: it cannot be written.
    """
    system, name = open_file_system(url)
    with _as_user_error(url, "written"):
        system.put_file(str(path), name)
        # fsspec remembers listings, which would still have the size before the upload.
        system.invalidate_cache()
        written, expected = system.info(name)["size"], path.stat().st_size
        if written != expected:
            raise OSError(f"{written:,} bytes were written, expected {expected:,}")


def list_remote_names(url: str) -> set[str]:
    """Returns the names of what a remote folder contains; none if there is no such folder."""
    system, name = open_file_system(url)
    with _as_user_error(url, "read"):
        system.invalidate_cache()
        if not system.exists(name):
            return set()
        return {path.rstrip("/").rpartition("/")[2] for path in system.ls(name, detail=False)}


def make_remote_folder(url: str) -> None:
    """Creates a remote folder, where the file system has folders."""
    system, name = open_file_system(url)
    with _as_user_error(url, "written"):
        system.makedirs(name, exist_ok=True)


def open_file_system(url: str) -> tuple[Any, str]:
    """Returns the file system of a URL, of type fsspec.AbstractFileSystem, and the path in it.

    Raises:
      UserError: there is no such file system; MissingExtraError if its package is missing.
      ConfigError: the address has a password, or it is one of HTTP with a query.
    """
    _check_no_secret(url)
    try:
        from fsspec.core import url_to_fs

        with _as_user_error(url, "opened"):
            return url_to_fs(url)
    except ImportError as error:
        if isinstance(error, UserError):
            raise
        need = f"{url}: this file system needs a package that is not installed ({error})"
        raise MissingExtraError(need, "remote") from None


def _check_no_secret(url: str) -> None:
    """Raises a ConfigError, without the address, if that may contain a secret."""
    for address in url.split("::"):
        try:
            parts = urlsplit(address)
            has_secret = bool(parts.password or (parts.query and parts.scheme in ("http", "https")))
        except ValueError:  # brackets where the name of a host is expected
            has_secret = "@" in address
        if has_secret:
            raise ConfigError(
                f"{address.partition('://')[0]}://...: expected no password or signature in the "
                "address, because the manifest has it too; give it in fsspec's configuration"
            )


@contextlib.contextmanager
def _as_user_error(url: str, verb: str) -> Generator[None]:
    try:
        yield
    except (UserError, ImportError):
        raise
    except Exception as error:  # every file system raises its own: of HTTP, of credentials
        raise UserError(
            f"{url}: cannot be {verb} ({error or type(error).__name__}); check the address and "
            "your credentials, then run the same command again, which continues"
        ) from None


def _find_remote_files(pattern: str) -> Iterator[SourceFile]:
    system, name = open_file_system(pattern)
    with _as_user_error(pattern, "listed"):
        system.invalidate_cache()  # the process may have listed the folder before
        # The exact name first, because it may contain glob characters.
        found = {name: system.info(name)} if system.isfile(name) else {}
        found = found or system.glob(name, detail=True)
    files = {path: info for path, info in found.items() if info["type"] == "file"}
    if not files:
        raise UserError(
            f"no file matches {pattern!r}; expected files, as in gs://bucket/folder/*.jsonl.gz: "
            "check the spelling"
        )
    for path, info in files.items():
        version = next((info[key] for key in _VERSION_KEYS if info.get(key)), "")
        digest = hashlib.blake2b(str(version).encode(), digest_size=7).digest()
        url = _address(system, path, pattern)
        if info["size"] is None:
            raise UserError(
                f"{url}: the server does not give the size of the file; download it first"
            )
        yield SourceFile(url, int(info["size"]), int.from_bytes(digest, "little"))


def _address(system: Any, path: str, pattern: str) -> str:
    """Returns the URL of a file that was found with a pattern.

    Raises:
      UserError: the URL would not have the host, user or archive that the pattern has.
    """
    url = system.unstrip_protocol(path)
    options = system._get_kwargs_from_urls
    if "::" in pattern or options(url) != options(pattern) or system._strip_protocol(url) != path:
        raise UserError(
            f"{pattern}: this kind of remote file cannot be read directly; expected an address of "
            "gs, s3, hf, https, memory or file: copy the files to this machine first"
        )
    return url
