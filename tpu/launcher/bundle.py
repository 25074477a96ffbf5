"""The code as one file: what git knows, with what has been changed since, named by its content.

The same files give the same bytes, whenever and by whomever they are packed: so a bundle is
uploaded once, and a run's manifest says exactly which code it ran.
"""

import gzip
import hashlib
import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from bert_jax.errors import UserError
from tpu.launcher.secrecy import TOKENS

# New files that git does not know yet are taken along from here only.
CODE_FOLDERS = ("bert_jax", "configs", "tpu")
_MOST_BYTES = 100 * 2**20
_NEEDED = ("setup.py", "bert_jax/__init__.py", "tpu/worker/agent.py", "tpu/worker/bootstrap.sh")


@dataclass(frozen=True)
class Bundle:
    """Packed code; `sha` is that of the tar before compression, `files` the names in it."""

    sha: str
    data: bytes
    files: tuple[str, ...]


def pack(root: Path) -> Bundle:
    """Packs the repository.

    Raises:
      UserError: it is no git checkout, is too large, lacks a file that the hosts need, or a file
        holds something shaped like a secret (named).
    """
    listed = set(_git(root)) | set(_git(root, "--others", "--exclude-standard", *CODE_FOLDERS))
    files = sorted(name for name in listed if (root / name).is_file())
    missing = [name for name in _NEEDED if name not in files]
    if missing:
        raise UserError(f"{root} lacks {missing[0]}; run tpu/pod from a whole checkout of bert_jax")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in files:
            data = (root / name).read_bytes()
            _refuse_secret(name, data)
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o755 if (root / name).stat().st_mode & 0o100 else 0o644
            tar.addfile(entry, io.BytesIO(data))
    if stream.tell() > _MOST_BYTES:
        raise UserError(
            f"the code is {stream.tell() / 2**20:.0f} MiB, expected at most "
            f"{_MOST_BYTES // 2**20}; put data into the bucket and pass --data NAME=gs://..."
        )
    packed = stream.getvalue()
    sha = hashlib.sha256(packed).hexdigest()
    return Bundle(sha, gzip.compress(packed, 6, mtime=0), tuple(files))


def _git(root: Path, *more: str) -> list[str]:
    argv = ["git", "-C", str(root), "ls-files", "-z", *more]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise UserError(
            f"{root} is no git checkout ({done.stderr.strip()}); the hosts get what git lists: "
            "clone the repository, or run `git init && git add .` in it"
        )
    return [name for name in done.stdout.split("\0") if name]


def _refuse_secret(name: str, data: bytes) -> None:
    # Tests of this very search hold made-up tokens.
    if not name.startswith("tests/") and TOKENS.search(data.decode("utf-8", errors="replace")):
        raise UserError(
            f"{name} holds something shaped like a token, and would be copied into the bucket; "
            "take it out of the file, and pass it with --env-secret"
        )
