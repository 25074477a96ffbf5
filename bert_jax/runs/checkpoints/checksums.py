"""Writes and verifies checksums of a checkpoint's files.

Without them a byte that flips on disk would be restored as a wrong weight without any error.
"""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from etils import epath

FILE = "checksums.json"
_FORMAT = "bert_jax checkpoint 1"
_CHUNK_BYTES = 1 << 20
# Orbax rewrites these after the checksums are computed; nothing is restored from them.
_EXCLUDED_FILES = (FILE, "_CHECKPOINT_METADATA", "commit_success.txt")


# Written into the temporary folder of the step before it is renamed. Without checksums a flipped
# byte would be restored as a wrong weight.
def write_checksums(folder: epath.Path, step: int | None = None) -> None:
    """Writes `checksums.json` for all files in a folder, atomically.

    Args:
      step: the step whose checkpoint the folder contains; None if it is not a checkpoint.
    """
    names = sorted(_list_files(folder))
    with ThreadPoolExecutor(4) as pool:
        hashes = pool.map(lambda name: _hash_file(folder / name), names)
    content = {
        "format": _FORMAT,
        "algorithm": "blake2b-256",
        **({} if step is None else {"step": step}),
        "files": {
            name: {"bytes": size, "digest": digest}
            for name, (size, digest) in zip(names, hashes, strict=True)
        },
    }
    temporary_file = folder / f"{FILE}.tmp"
    temporary_file.write_text(json.dumps(content, indent=1))
    temporary_file.replace(folder / FILE)


def find_problems(folder: epath.Path, file_prefixes: tuple[str, ...] = ("",)) -> list[str]:
    """Returns one line for each missing or damaged file of `folder`; [] if all are valid.

    Args:
      folder: the folder of one step.
      file_prefixes: check only files whose name, relative to `folder`, starts with one of these.
    """
    try:
        content = json.loads((folder / FILE).read_text())
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']!r}")
        saved_step = content.get("step")  # absent in older files and in other folders than steps
        if saved_step is not None and f"{saved_step}" != folder.name:
            return [f"{folder} holds the checkpoint of step {saved_step}"]
        recorded = {
            name: (entry["bytes"], entry["digest"]) for name, entry in content["files"].items()
        }
    except FileNotFoundError:
        return [f"{folder / FILE} is missing: not a bert_jax checkpoint, or an incomplete one"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return [f"{folder / FILE} cannot be read ({error!r})"]
    names = sorted(name for name in recorded if name.startswith(file_prefixes))
    with ThreadPoolExecutor(4) as pool:
        problems_found = pool.map(lambda name: _check_file(folder / name, *recorded[name]), names)
    return [problem for problem in problems_found if problem]


def _check_file(file: epath.Path, size: int, digest: str) -> str | None:
    try:
        found_size, found_digest = _hash_file(file)
    except FileNotFoundError:
        return f"{file} is missing"
    except OSError as error:
        return f"{file} cannot be read ({error.strerror or error})"
    if found_size != size:
        return f"{file} has {found_size} bytes, expected {size}"
    if found_digest != digest:
        return f"{file} is damaged: its checksum is not the one in {FILE}"
    return None


def _hash_file(file: epath.Path) -> tuple[int, str]:
    hasher, size = hashlib.blake2b(digest_size=32), 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            hasher.update(chunk)
            size += len(chunk)
    return size, hasher.hexdigest()


def _list_files(folder: epath.Path, prefix: str = "") -> Iterator[str]:
    for path in folder.iterdir():
        name = f"{prefix}{path.name}"
        if path.is_dir():
            yield from _list_files(path, f"{name}/")
        elif name not in _EXCLUDED_FILES:
            yield name
