"""Packs the code for the hosts into one file that is named by its content.

From a checkout these are the files in git, with local changes; from an installed wheel the files of
the package and of its folder `_source`, which setup.py lays out like a checkout. Equal files give
equal bytes, so each version of the code is uploaded once.
"""

import gzip
import hashlib
import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from bert_jax.errors import UserError
from tpu.gcloud import has_token

# Untracked files are included only from these folders.
_CODE_FOLDERS = ("bert_jax", "configs", "tpu")
_MAX_BYTES = 100 * 2**20
_REQUIRED_FILES = ("setup.py", "bert_jax/__init__.py", "tpu/worker.py", "tpu/host/bootstrap.sh")


@dataclass(frozen=True)
class CodeArchive:
    """Holds packed code; `sha` is the sha256 of the uncompressed tar, `files` its file names."""

    sha: str
    data: bytes
    files: tuple[str, ...]


def pack(root: Path) -> CodeArchive:
    """Packs a git checkout, or the folder `bert_jax/_source` of an installed wheel.

    Raises:
      UserError: `root` is neither, is too large, lacks a file that hosts need, or contains a file
        with something that looks like a token.
    """
    is_installed = root.name == "_source" and (root.parent / "__init__.py").is_file()
    paths = _installed_files(root) if is_installed else _checkout_files(root)
    missing = [name for name in _REQUIRED_FILES if name not in paths]
    if missing:
        raise UserError(f"{root} lacks {missing[0]}; launch from a complete checkout of bert_jax")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in sorted(paths.items()):
            data = path.read_bytes()
            # The tests of this check contain made-up tokens.
            if not name.startswith("tests/") and has_token(data.decode("utf-8", "replace")):
                raise UserError(
                    f"{name} contains something that looks like a token and would be copied to the "
                    "bucket; remove it from the file and pass it with --env-secret"
                )
            # A new TarInfo has no times and owners, so equal files give equal bytes and one
            # upload.
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(entry, io.BytesIO(data))
    if stream.tell() > _MAX_BYTES:
        raise UserError(
            f"the code is {stream.tell() / 2**20:.0f} MiB, expected at most "
            f"{_MAX_BYTES // 2**20}; put data into the bucket and pass --data NAME=gs://..."
        )
    tar_bytes = stream.getvalue()
    sha = hashlib.sha256(tar_bytes).hexdigest()
    # The hash is of the tar and not of the gzip file, whose bytes depend on the version of zlib.
    return CodeArchive(sha, gzip.compress(tar_bytes, 6, mtime=0), tuple(sorted(paths)))


def _installed_files(root: Path) -> dict[str, Path]:
    """Returns the files of an installed wheel by their name in a checkout."""
    package = root.parent
    found = {
        path: path.relative_to(root if path.is_relative_to(root) else package.parent)
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return {name.as_posix(): path for path, name in found.items()}


def _checkout_files(root: Path) -> dict[str, Path]:
    """Returns the files of a git checkout by their name."""
    names = {
        *_git_ls_files(root),
        *_git_ls_files(root, "--others", "--exclude-standard", *_CODE_FOLDERS),
    }
    return {name: root / name for name in names if (root / name).is_file()}


def _git_ls_files(root: Path, *flags: str) -> list[str]:
    argv = ["git", "-C", str(root), "ls-files", "-z", *flags]
    completed = subprocess.run(argv, capture_output=True, text=True)
    if completed.returncode:
        raise UserError(
            f"{root} is not a git checkout ({completed.stderr.strip()}); hosts get the files that "
            "git lists: clone the repository, or run `git init && git add .` in it"
        )
    return [name for name in completed.stdout.split("\0") if name]
