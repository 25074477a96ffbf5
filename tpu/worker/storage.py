"""Reads and writes the bucket with `gcloud storage`: small objects, and folders by rsync."""

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bert_jax.errors import UserError

_OBJECT_TIMEOUT_SECONDS, _RSYNC_TIMEOUT_SECONDS = 120, 3600
_RETRY_DELAYS = (1.0, 4.0)  # seconds before the second and the third try
_NOT_FOUND_MESSAGES = ("matched no objects", "Did not find existing container", "not found: 404")
_DENIED_MESSAGES = ("HTTPError 401", "HTTPError 403", "does not have storage", "AccessDenied")


class StorageError(UserError):
    """Reports a failed bucket operation.

    Attributes:
      permanent: whether a retry would not help.
      fix: what to do; None if it depends on the operation.
    """

    def __init__(self, message: str, *, permanent: bool, fix: str | None = None):
        super().__init__(message)
        self.permanent, self.fix = permanent, fix


def read(url: str) -> str | None:
    """Returns the text of an object; None if it does not exist.

    Raises:
      StorageError: it cannot be read.
    """
    return _run_gcloud(["cat", url], missing_ok=True)


def write(url: str, text: str) -> None:
    """Writes an object.

    Raises:
      StorageError: it cannot be written.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "object"
        file.write_text(text, encoding="utf-8")
        copy(file, url)


def copy(source: str | Path, target: str | Path) -> None:
    """Copies one object or file.

    Raises:
      StorageError: it cannot be copied.
    """
    _run_gcloud(["cp", str(source), str(target)])


def list_names(url: str) -> list[str]:
    """Returns the names directly below a folder; names of folders end with a slash.

    Raises:
      StorageError: it cannot be listed.
    """
    listed = _run_gcloud(["ls", f"{url}/"], missing_ok=True) or ""
    lines = (line.strip().removeprefix(f"{url}/") for line in listed.splitlines())
    return [line for line in lines if line]


def remove(url: str) -> None:
    """Removes an object; does nothing if it does not exist.

    Raises:
      StorageError: it cannot be removed.
    """
    _run_gcloud(["rm", url], missing_ok=True)


def check_access(url: str) -> None:
    """Checks that an object can be written, read and removed; nothing remains of it.

    Raises:
      StorageError: one of the three failed, or another text was read than was written.
    """
    written = "probe"
    write(url, written)
    found = read(url)
    remove(url)
    if found != written:
        content = "does not exist" if found is None else f"contains {found!r}"
        raise StorageError(
            f"{written!r} was written to {url}, but the object {content} afterwards",
            permanent=False,
            fix="stop other programs that write to or delete from this folder, then launch again",
        )


def rsync(
    source: str | Path,
    target: str | Path,
    *,
    exclude: Sequence[str] = (),
    required: bool = False,
) -> None:
    """Copies the files of `source` that `target` lacks or that differ there; removes nothing.

    Args:
      exclude: regular expressions; a file is not copied if one matches its relative path from the
        beginning.
      required: whether to raise if the source does not exist; otherwise it counts as empty.

    Raises:
      StorageError: something cannot be copied.
    """
    if isinstance(target, Path):
        target.mkdir(parents=True, exist_ok=True)
    flags = ["--recursive"]
    flags += [f"--exclude={'|'.join(f'(?:{each})' for each in exclude)}"] if exclude else []
    arguments = ["rsync", *flags, str(source), str(target)]
    _run_gcloud(arguments, missing_ok=not required, timeout=_RSYNC_TIMEOUT_SECONDS)


def _run_gcloud(
    arguments: Sequence[str], *, missing_ok: bool = False, timeout: float = _OBJECT_TIMEOUT_SECONDS
) -> str | None:
    """Returns stdout, or None if the object is absent and may be. Tries three times."""
    for delay in (*_RETRY_DELAYS, None):
        failure = None
        try:
            completed = subprocess.run(
                ["gcloud", "storage", *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                env={**os.environ, "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"},
            )
        except FileNotFoundError:
            raise StorageError("gcloud is not on PATH of this host", permanent=True) from None
        except subprocess.TimeoutExpired:
            failure, permanent = f"no answer in {timeout:.0f} seconds", False
        else:
            if completed.returncode == 0:
                return completed.stdout.decode("utf-8", errors="replace")
            stderr = completed.stderr.decode("utf-8", errors="replace").strip()
            not_found = any(message in stderr for message in _NOT_FOUND_MESSAGES)
            if not_found and missing_ok:
                return None
            failure = stderr.splitlines()[-1] if stderr else f"exit code {completed.returncode}"
            permanent = not_found or any(message in stderr for message in _DENIED_MESSAGES)
        if permanent or delay is None:
            raise StorageError(
                f"gcloud storage {arguments[0]} {arguments[-1]}: {failure}", permanent=permanent
            )
        time.sleep(delay)
    raise AssertionError("the last try returns or raises")
