"""Gives corpus steps access to the documents of all work units, and stores their decisions.

A spill file is a gzip file with one JSON line for each document of the input, in order. A second
file has the ids for random access, and a third one counts and the fingerprint of the plan, so that
a later run need not decompress the spill file to see that it is finished.

A corpus step compares documents with each other, or with all of the corpus: duplicates, repeated
lines, decontamination. It is a config dataclass with a method `decide`, which reads the documents
that the rules and earlier steps retained, and writes one file of decisions for each work unit.
"""

import gzip
import hashlib
import json
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.apps.curate.ledger import RETAINED
from bert_jax.apps.curate.workers import Workers
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_path, atomic_write, write_json
from bert_jax.io.json_io import read_json_object


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


def read_spill_ids(spill: Path, indices: Sequence[int]) -> list[str]:
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


_BLANK_LINES = re.compile(r"\n\s*\n")
_WHITE_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """Holds a document that is retained so far.

    Attributes:
      index: its number among all documents of its work unit, from 0.
      id: as in the ledger.
      text: without the lines that earlier steps removed.
      match_key: hash of the text, which is equal for texts that differ in case, white space and
        compatible characters only; 32 hexadecimal digits.
      fields: the other fields of a JSON line.
    """

    index: int
    id: str
    text: str
    match_key: str
    fields: Mapping[str, Any]


class Decision(NamedTuple):
    """Describes what a step does to one document: it drops the document, or removes lines of it.

    Attributes:
      reason: why the document is dropped; "" to remove lines only.
      value: the number that led to the decision, for the ledger.
      twin: the id of what the document repeats, for the ledger.
      removed_lines: numbers of the removed lines, from 0, of the text split at newlines.
      removed_reason: why the lines were removed; the manifest counts lines by reason.
    """

    reason: str = RETAINED
    value: float | None = None
    twin: str = ""
    removed_lines: Sequence[int] = ()
    removed_reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Reads the documents before one step; can be sent to worker processes.

    Attributes:
      folder: holds the files between the steps. A file of a step that is written atomically, at
        `path(...)`, stays if the run is stopped, and `Workers.write_files` does not repeat it.
      sources: the name of the source of each work unit. Sources that are earlier have priority.
      priorities: the number of that source, from 0.
      step: number of the step, from 0; decisions of the steps before it are applied.
      check: returns the reason to drop a text by the rules for documents ("" to keep it), and the
        value that broke a rule; importable. Texts are checked again if a step removed lines.
    """

    folder: Path
    sources: tuple[str, ...]
    priorities: tuple[int, ...]
    step: int
    check: Callable[[str], tuple[str, float | None]]

    @property
    def num_units(self) -> int:
        """Returns the number of work units."""
        return len(self.sources)

    @property
    def output_folder(self) -> Path:
        """Returns the folder whose files are moved to the output at the end; a step may make it."""
        return self.folder / "output"

    def spill_path(self, unit: int) -> Path:
        """Returns the path of the spill file of a work unit."""
        return self.folder / f"spill-{unit:05d}.jsonl.gz"

    def path(self, name: str, number: int) -> Path:
        """Returns a path for a file of this step, `number` being a unit's or a partition's."""
        return self.folder / f"step-{self.step}-{name}-{number:05d}"

    def decisions_path(self, unit: int) -> Path:
        """Returns the path of the decisions of this step about a work unit."""
        return self.path("decisions", unit)

    def write_units(
        self,
        workers: Workers,
        name: str,
        function: Callable[..., None],
        *arguments: Any,
        description: str,
    ) -> list[Path]:
        """Writes a file of this step for each work unit, with `workers`; returns the paths.

        Args:
          name: as for `path`.
          function: called as `function(path, corpus, unit, *arguments)`; must be importable.
        """
        paths = [self.path(name, unit) for unit in range(self.num_units)]
        tasks = {path: (self, unit, *arguments) for unit, path in enumerate(paths)}
        workers.write_files(function, tasks, description=description)
        return paths

    def write_key_ranges(
        self,
        workers: Workers,
        name: str,
        function: Callable[..., None],
        ranges: Sequence[tuple[int, int]],
        files: Sequence[Path],
        *,
        description: str,
    ) -> list[Path]:
        """Writes a file of this step for each range of keys; returns the paths.

        Args:
          name: as for `path`.
          function: called as `function(path, files, first, last)`; must be importable.
          ranges: (first, last) of each range.
          files: rows with the keys of all work units.
        """
        paths = [self.path(name, number) for number in range(len(ranges))]
        tasks = {path: (files, *ranges[number]) for number, path in enumerate(paths)}
        workers.write_files(function, tasks, description=description)
        return paths

    def documents(self, unit: int) -> Iterator[Document]:
        """Yields the documents of a work unit that are retained so far, in order."""
        for index, (record, _) in enumerate(self.records(unit)):
            if record["reason"] == RETAINED:
                yield Document(
                    index=index,
                    id=record["id"],
                    text=record["text"],
                    match_key=record["key"] or match_digest(record["text"]),
                    fields=record["fields"],
                )

    def records(self, unit: int) -> Iterator[tuple[dict[str, Any], Counter[str]]]:
        """Yields each record of the spill file of a work unit, with the decisions applied.

        Yields:
          (record, number of removed lines by reason); the text of a dropped document is "".
        """
        earlier = [replace(self, step=k).read_decisions(unit) for k in range(self.step)]
        for index, record in enumerate(read_documents_of(self.spill_path(unit))):
            record.setdefault("twin", "")
            removed = Counter[str]()
            for decisions in earlier:
                decision = decisions.get(index)
                if decision is None:
                    continue
                if decision.removed_lines:
                    record["text"] = remove_lines(record["text"], decision.removed_lines)
                    record["key"] = ""
                    removed[decision.removed_reason] += len(decision.removed_lines)
                if decision.reason != RETAINED:
                    record.update(
                        reason=decision.reason, value=decision.value, twin=decision.twin, text=""
                    )
            yield record, removed

    def read_ids(self, documents: np.ndarray) -> dict[int, str]:
        """Returns the ids of documents by their numbers (`document_number`), which are uint64."""
        ids: dict[int, str] = {}
        numbers = np.unique(documents)
        units = (numbers >> np.uint64(32)).astype(np.int64)
        for unit in np.unique(units).tolist():
            of_unit = numbers[units == unit].tolist()
            indices = [index_of_document(number) for number in of_unit]
            ids.update(zip(of_unit, read_spill_ids(self.spill_path(unit), indices), strict=True))
        return ids

    def edit(
        self, document: Document, removed_lines: Collection[int], removed_reason: str
    ) -> Decision:
        """Returns the decision to remove lines, and to drop the document if a rule is broken then.

        Args:
          removed_lines: numbers of lines, from 0, of the text split at newlines.
        """
        numbers = tuple(sorted(removed_lines))
        reason, value = self.check(remove_lines(document.text, numbers))
        return Decision(
            reason=reason, value=value, removed_lines=numbers, removed_reason=removed_reason
        )

    def write_decisions(self, unit: int, decisions: Mapping[int, Decision]) -> None:
        """Writes the decisions of this step about a work unit, by the index of the document."""
        lines = [
            json.dumps([index, *decision]) + "\n" for index, decision in sorted(decisions.items())
        ]
        atomic_write(self.decisions_path(unit), "".join(lines))

    def read_decisions(self, unit: int) -> dict[int, Decision]:
        """Returns the decisions of this step about a work unit, by the index of the document."""
        decisions: dict[int, Decision] = {}
        with self.decisions_path(unit).open(encoding="utf-8") as file:
            for line in file:
                index, *fields = json.loads(line)
                decisions[index] = Decision(*fields)
        return decisions


def document_number(unit: int, index: int) -> int:
    """Returns the number of a document in the corpus, 64 bits, ascending in the order of input."""
    return unit << 32 | index


def documents_of_unit(unit: int) -> tuple[int, int]:
    """Returns the first and the last of the numbers of documents in a work unit."""
    return document_number(unit, 0), document_number(unit, 2**32 - 1)


def index_of_document(number: int) -> int:
    """Returns the index in its work unit of the document with a number."""
    return number & 0xFFFFFFFF


def match_key(text: str) -> str:
    """Returns the form in which documents are compared: NFKC, lower case, single spaces."""
    folded = unicodedata.normalize("NFKC", text).lower()
    return _WHITE_SPACE.sub(" ", folded).strip()


def match_digest(text: str) -> str:
    """Returns the hash of the form in which documents are compared."""
    return digest(match_key(text))


def digest(text: str) -> str:
    """Returns BLAKE2b of a text, 128 bits in hexadecimal digits."""
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def hash_text(text: str) -> int:
    """Returns BLAKE2b of a text, 64 bits.

    The hashes of ids are an order of documents that the input does not have.
    """
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def remove_lines(text: str, removed_lines: Collection[int]) -> str:
    """Returns a text without some lines; several blank lines in succession become one."""
    numbers = set(removed_lines)
    lines = [line for i, line in enumerate(text.split("\n")) if i not in numbers]
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()
