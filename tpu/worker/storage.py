"""The bucket, through `gcloud storage`: small objects, folders that are brought up to date."""

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bert_jax.errors import UserError

_SMALL_SECONDS, _LARGE_SECONDS = 120, 3600
_PAUSES = (1.0, 4.0)  # seconds before the second and the third try
_ABSENT = ("matched no objects", "Did not find existing container", "not found: 404")
_REFUSED = ("HTTPError 401", "HTTPError 403", "does not have storage", "AccessDenied")


class StorageError(UserError):
    """The bucket did not do what was asked; `lasting` if asking again would not help."""

    def __init__(self, message: str, *, lasting: bool):
        super().__init__(message)
        self.lasting = lasting


def read(url: str) -> str | None:
    """The text of an object; None if it is not there.

    Raises:
      StorageError: it cannot be read.
    """
    return _gcloud(["cat", url], may_be_absent=True)


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
    _gcloud(["cp", str(source), str(target)])


def names(url: str) -> list[str]:
    """The names directly below a folder, those of folders with a slash; empty if there are none.

    Raises:
      StorageError: it cannot be listed.
    """
    listed = _gcloud(["ls", f"{url}/"], may_be_absent=True) or ""
    lines = (line.strip().removeprefix(f"{url}/") for line in listed.splitlines())
    return [line for line in lines if line]


def remove(url: str) -> None:
    """Removes an object; one that is not there is no error.

    Raises:
      StorageError: it cannot be removed.
    """
    _gcloud(["rm", url], may_be_absent=True)


def bring(
    source: str | Path,
    target: str | Path,
    *,
    skip: Sequence[str] = (),
    required: bool = False,
) -> None:
    """Makes `target` hold what `source` holds, copying what is new or different; removes nothing.

    Args:
      skip: regular expressions of relative paths, from their beginning, that are left alone.
      required: a source in the bucket that is not there is an error, not an empty one.

    Raises:
      StorageError: something cannot be copied.
    """
    if isinstance(target, Path):
        target.mkdir(parents=True, exist_ok=True)
    flags = ["--recursive"]
    flags += [f"--exclude={'|'.join(f'(?:{each})' for each in skip)}"] if skip else []
    words = ["rsync", *flags, str(source), str(target)]
    _gcloud(words, may_be_absent=not required, seconds=_LARGE_SECONDS)


def _gcloud(
    words: Sequence[str], *, may_be_absent: bool = False, seconds: float = _SMALL_SECONDS
) -> str | None:
    """stdout, or None if what was named is not there and may be absent. Tries three times."""
    for pause in (*_PAUSES, None):
        failure = None
        try:
            done = subprocess.run(
                ["gcloud", "storage", *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                env={**os.environ, "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"},
            )
        except FileNotFoundError:
            raise StorageError("gcloud is not on PATH of this host", lasting=True) from None
        except subprocess.TimeoutExpired:
            failure, lasting = f"no answer in {seconds:.0f} seconds", False
        else:
            if done.returncode == 0:
                return done.stdout.decode("utf-8", errors="replace")
            said = done.stderr.decode("utf-8", errors="replace").strip()
            absent = any(words in said for words in _ABSENT)
            if absent and may_be_absent:
                return None
            failure = said.splitlines()[-1] if said else f"exit code {done.returncode}"
            lasting = absent or any(words in said for words in _REFUSED)
        if lasting or pause is None:
            raise StorageError(f"gcloud storage {words[0]} {words[-1]}: {failure}", lasting=lasting)
        time.sleep(pause)
    raise AssertionError("the last try returns or raises")
