"""Reads and writes spill files: the documents of one work unit after the rules for documents.

A spill file is a gzip file with one JSON line for each document of the input, in order. A second
file has the ids for random access, and a third one counts and the fingerprint of the plan, so that
a later run need not decompress the spill file to see that it is finished.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.atomic_io import atomic_path, atomic_write, write_json
from bert_jax.errors import UserError
from bert_jax.json_io import read_json_object


def encode_json_line(record: Mapping[str, Any]) -> bytes:
    """Returns a line of JSON in UTF-8; lone surrogates, which UTF-8 does not have, are escaped."""
    try:
        return (json.dumps(record, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        return (json.dumps(record) + "\n").encode()


def write_spill_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Writes JSON lines to a gzip file, whose bytes have no time and no name, and the ids.

    Args:
      lines: the records of the documents, each with an id; the last one, without an id, is the
        summary, which has the fingerprint of the plan as "plan".
    """
    ids: list[bytes] = []
    summary: dict[str, Any] = {}
    with atomic_path(path) as tmp_path:
        with open(tmp_path, "wb") as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as spill:
            for line in lines:
                if "id" in line:
                    spill.write(encode_json_line(line))
                    ids.append(line["id"].encode("utf-8", "surrogatepass"))
                else:
                    summary = line
        # Both before the spill file gets its name, by which it is found to be finished.
        write_json(_summary_path(path), summary | {"spill_bytes": tmp_path.stat().st_size})
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


def _summary_path(spill: Path) -> Path:
    return spill.with_name(spill.name.removesuffix(".jsonl.gz") + ".json")


def read_documents_of(spill: Path) -> Iterator[dict[str, Any]]:
    """Yields the record of each document in a spill file.

    Raises:
      UserError: the file is missing or damaged.
    """
    try:
        with gzip.open(spill, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(
            f"{spill}: damaged ({error}); delete it and run the same command again"
        ) from None


def read_summary(spill: Path) -> dict[str, Any]:
    """Returns the summary of a spill file: the fingerprint of its plan, counts, its size."""
    return read_json_object(_summary_path(spill))


def is_finished(spill: Path, fingerprint: str) -> bool:
    """Returns whether a spill file exists, has its full size and belongs to this plan.

    Damage in the middle is an error of `read_documents_of`.
    """
    try:
        summary = read_summary(spill)
        return summary.get("plan") == fingerprint and (
            summary.get("spill_bytes") == spill.stat().st_size
        )
    except (OSError, UserError):
        return False
