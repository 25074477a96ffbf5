"""Packs the code into one file named by its content.

From a checkout these are the files in git, with local changes. From an installed wheel these are
the files of the package and of its folder `_source`, which setup.py lays out like a checkout.

Equal files always give equal bytes. So each bundle is uploaded once, and the manifest of a run
identifies exactly the code that it runs.
"""

import gzip
import hashlib
import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from bert_jax.errors import UserError
from tpu.launcher.cloud.redaction import TOKEN_PATTERN

# Untracked files are included only from these folders.
CODE_FOLDERS = ("bert_jax", "configs", "tpu")
_MAX_BYTES = 100 * 2**20
_REQUIRED_FILES = (
    "setup.py",
    "bert_jax/__init__.py",
    "tpu/worker/agent.py",
    "tpu/worker/bootstrap.sh",
)


@dataclass(frozen=True)
class Bundle:
    """Holds packed code; `sha` is the sha256 of the uncompressed tar, `files` its file names."""

    sha: str
    data: bytes
    files: tuple[str, ...]


def pack(root: Path) -> Bundle:
    """Packs a git checkout, or the folder `bert_jax/_source` of an installed wheel.

    Raises:
      UserError: `root` is neither, is too large, lacks a file that hosts need, or contains a file
        with something that looks like a token.
    """
    paths = _installed_files(root) if _is_installed(root) else _checkout_files(root)
    files = sorted(paths)
    missing = [name for name in _REQUIRED_FILES if name not in files]
    if missing:
        raise UserError(
            f"{root} lacks {missing[0]}; run tpu/tpuctl from a complete checkout of bert_jax"
        )
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in files:
            path = paths[name]
            data = path.read_bytes()
            _reject_secret(name, data)
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
    return Bundle(sha, gzip.compress(tar_bytes, 6, mtime=0), tuple(files))


def _is_installed(root: Path) -> bool:
    return root.name == "_source" and (root.parent / "__init__.py").is_file()


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
    listed = set(_git_ls_files(root)) | set(
        _git_ls_files(root, "--others", "--exclude-standard", *CODE_FOLDERS)
    )
    return {name: root / name for name in listed if (root / name).is_file()}


def _git_ls_files(root: Path, *flags: str) -> list[str]:
    argv = ["git", "-C", str(root), "ls-files", "-z", *flags]
    completed = subprocess.run(argv, capture_output=True, text=True)
    if completed.returncode:
        raise UserError(
            f"{root} is not a git checkout ({completed.stderr.strip()}); hosts get the files that "
            "git lists: clone the repository, or run `git init && git add .` in it"
        )
    return [name for name in completed.stdout.split("\0") if name]


def _reject_secret(name: str, data: bytes) -> None:
    # The tests of this check contain made-up tokens.
    if not name.startswith("tests/") and TOKEN_PATTERN.search(
        data.decode("utf-8", errors="replace")
    ):
        raise UserError(
            f"{name} contains something that looks like a token and would be copied to the bucket; "
            "remove it from the file and pass it with --env-secret"
        )
