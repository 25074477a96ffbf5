"""Reads and writes spill files: the documents of one work unit after the rules for documents.

A spill file is a gzip file with one JSON line for each document of the input, in order, and a last
line with the fingerprint of the plan and counts. A second file has the ids for random access.
"""

import gzip
import json
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.atomic_io import atomic_path, atomic_write
from bert_jax.errors import UserError


def write_spill_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Writes JSON lines to a gzip file, whose bytes have no time and no name, and the ids."""
    ids: list[bytes] = []
    with atomic_path(path) as tmp_path:
        with open(tmp_path, "wb") as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as spill:
            for line in lines:
                text = json.dumps(line, ensure_ascii=False) + "\n"
                spill.write(text.encode("utf-8", "surrogatepass"))
                if "id" in line:
                    ids.append(line["id"].encode("utf-8", "surrogatepass"))
        # Before the spill file gets its name, by which it is found to be finished.
        offsets = np.cumsum([8 * (len(ids) + 1), *map(len, ids)], dtype="<u8")
        atomic_write(_ids_path(path), offsets.tobytes() + b"".join(ids))


def read_ids(spill: Path, indices: Sequence[int]) -> list[str]:
    """Returns the ids of some documents of a spill file, by their indices, ascending."""
    ids: list[str] = []
    with _ids_path(spill).open("rb") as file:
        for index in indices:
            file.seek(8 * index)
            begin, end = np.frombuffer(file.read(16), "<u8").tolist()
            file.seek(begin)
            ids.append(file.read(end - begin).decode("utf-8", "surrogatepass"))
    return ids


def _ids_path(spill: Path) -> Path:
    return spill.with_name(spill.name.removesuffix(".jsonl.gz") + ".ids")


def read_documents_of(spill: Path) -> Iterator[dict[str, Any]]:
    """Yields the record of each document in a spill file."""
    return (record for record in _read_lines(spill) if "id" in record)


def read_summary(spill: Path) -> dict[str, Any]:
    """Returns the last line of a spill file: its plan, and counts."""
    return deque(_read_lines(spill), maxlen=1)[0]


def is_finished(spill: Path, fingerprint: str) -> bool:
    """Returns whether a spill file exists, is undamaged and belongs to this plan."""
    try:
        return read_summary(spill).get("plan") == fingerprint
    except (IndexError, UserError):
        return False


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as spill:
            for line in spill:
                yield json.loads(line)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(
            f"{path}: damaged ({error}); delete it and run the same command again"
        ) from None
