"""Where documents come from: text files, TFDS, a Python function, or any seqio task.

A source is a value; it opens nothing until it is read, and this file imports no TensorFlow. Files
are dealt into *work units*, one per output shard, by a rule that looks at the list of files alone:
whoever writes shard k, on whichever machine, reads the same bytes in the same order.
"""

import functools
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bert_jax.data.corpus.documents import DocumentsConfig, EncodedDocument, encode_document
from bert_jax.errors import ConfigError, UserError
from bert_jax.text.files import DocumentUnit, expand_globs, read_documents
from bert_jax.text.sentences import get_sentence_splitter
from bert_jax.text.tokenizer import Tokenizer

Patterns = str | Sequence[str]
# Called with (documents, size of their text) as they are done.
ProgressCallback = Callable[[int, int], None]

# A small corpus still keeps many workers busy; a big one gets shards of a convenient size.
SMALL_UNIT_BYTES = 2**20
LARGE_UNIT_BYTES = 256 * 2**20
SMALL_CORPUS_UNITS = 64


@dataclass(frozen=True)
class TextFiles:
    """Text, JSONL and gzipped files by glob: `TextFiles({"train": "books/*.txt.gz"})`.

    `splits` maps a split's name to a pattern or several; a bare pattern is the split "train".
    `document_unit` says what a document is in a text file: the whole file, a run of lines between
    blank lines, or a line. JSONL files have one document a line, its text under `json_field`.
    """

    splits: Mapping[str, Patterns] | Patterns
    document_unit: DocumentUnit = field(default="file", kw_only=True)
    json_field: str = field(default="text", kw_only=True)
    encoding: str = field(default="utf-8", kw_only=True)
    errors: str = field(default="strict", kw_only=True)

    def __post_init__(self) -> None:
        patterns_by_split = (
            self.splits if isinstance(self.splits, Mapping) else {"train": self.splits}
        )
        splits = {k: (v,) if isinstance(v, str) else tuple(v) for k, v in patterns_by_split.items()}
        if not splits or not all(splits.values()):
            raise ConfigError("text files: no pattern given; expected at least one, as 'books/*'")
        object.__setattr__(self, "splits", splits)

    def patterns(self, split: str) -> tuple[str, ...]:
        """The patterns of one split.

        Raises:
          UserError: there is no such split.
        """
        splits = self.splits
        assert isinstance(splits, Mapping)
        if split not in splits:
            raise UserError(f"no split {split!r} here; splits: {', '.join(splits)}")
        return tuple(splits[split])

    def list_files(self, split: str) -> "tuple[SourceFile, ...]":
        """The files of a split, sorted by path.

        Raises:
          UserError: a pattern that matches nothing, or a corpus of empty files.
        """
        files = tuple(SourceFile.from_path(path) for path in expand_globs(self.patterns(split)))
        if not sum(file.size_bytes for file in files):
            raise UserError(f"{', '.join(self.patterns(split))}: every file is empty")
        return files

    def read_texts(self, files: "Iterable[SourceFile]") -> Iterator[str]:
        """The documents in `files`, as they stand there."""
        for file in files:
            for _, text in read_documents(
                file.path,
                encoding=self.encoding,
                errors=self.errors,
                json_field=self.json_field,
                document_unit=self.document_unit,
            ):
                yield text


@dataclass(frozen=True, kw_only=True)
class Tfds:
    """A dataset of TensorFlow Datasets, as `Tfds(dataset="wikipedia/20230601.en")`.

    `splits` may map names to TFDS slices, as {"train": "train[:99%]", "validation": "train[99%:]"};
    by default the dataset's own splits are taken. The text of an example is under `text_key`.
    """

    dataset: str
    splits: Mapping[str, str] | None = None
    text_key: str = "text"
    data_dir: str | None = None


@dataclass(frozen=True, kw_only=True)
class PythonDocuments:
    """Functions that return documents: `PythonDocuments(splits={"train": read_my_corpus})`.

    Each function takes nothing, returns an iterable of str, and gives the same documents in the
    same order at every call.
    """

    splits: Mapping[str, Callable[[], Iterable[str]]]


@dataclass(frozen=True, kw_only=True)
class RegisteredTask:
    """A seqio task by its name; `module` is the Python file that registers it, if any does."""

    name: str
    module: str | None = None


@dataclass(frozen=True)
class SourceFile:
    """One file: path, size in bytes, time of last change in nanoseconds."""

    path: str
    size_bytes: int
    modified_ns: int

    @classmethod
    def from_path(cls, path: str) -> "SourceFile":
        file_stat = os.stat(path)
        return cls(path, file_stat.st_size, file_stat.st_mtime_ns)

    @property
    def text_bytes(self) -> int:
        """Bytes of text, for showing progress; gzip tells it modulo 2^32."""
        if not self.path.endswith(".gz") or self.size_bytes < 18:
            return self.size_bytes
        with open(self.path, "rb") as file:
            file.seek(-4, os.SEEK_END)
            return max(self.size_bytes, int.from_bytes(file.read(4), "little"))


@dataclass(frozen=True, kw_only=True)
class FileUnit:
    """The files of one output shard, in order; `source` says how they are read."""

    source: TextFiles
    files: tuple[SourceFile, ...]

    @functools.cached_property
    def text_bytes(self) -> int:
        """About how much text there is, for showing progress."""
        return sum(file.text_bytes for file in self.files)

    def encoded_documents(
        self, tokenizer: Tokenizer, config: DocumentsConfig, report_progress: ProgressCallback
    ) -> Iterator[EncodedDocument | str]:
        """The unit's documents, encoded, or the reasons why they are dropped."""
        splitter = get_sentence_splitter(config.splitter)
        for text in self.source.read_texts(self.files):
            yield encode_document(text, tokenizer, splitter)
            report_progress(1, len(text))

    def with_paths(self, paths: Sequence[str]) -> "FileUnit":
        """The same unit, its files lying at `paths` (copies on another machine)."""
        pairs = zip(self.files, paths, strict=True)
        return replace(self, files=tuple(replace(file, path=path) for file, path in pairs))


@dataclass(frozen=True, kw_only=True)
class TaskUnit:
    """Part `number` of `total` of a task's source, read through seqio, which needs TensorFlow."""

    task: str
    module: str | None
    split: str
    shard_index: int
    num_shards: int

    @property
    def text_bytes(self) -> int:
        """Unknown before it is read."""
        return 0

    def encoded_documents(
        self, tokenizer: Tokenizer, config: DocumentsConfig, report_progress: ProgressCallback
    ) -> Iterator[EncodedDocument | str]:
        """What the task has at its cache placeholder."""
        del tokenizer, config  # the task was registered with its own
        from bert_jax.data.seqio.text_tasks import find_task, precache_documents

        task = find_task(self.task, self.module)
        for document in precache_documents(task, self.split, self.shard_index, self.num_shards):
            yield document
            report_progress(1, 0 if isinstance(document, str) else document.text_bytes)


def make_file_units(
    source: TextFiles, files: Sequence[SourceFile], num_shards: int | None
) -> tuple[FileUnit, ...]:
    """Deals files, in order, into at most `shards` units of nearly equal size, none empty."""
    num_units = num_shards or default_num_units(sum(file.size_bytes for file in files))
    groups = balanced_groups([file.size_bytes for file in files], num_units)
    return tuple(FileUnit(source=source, files=tuple(files[i] for i in group)) for group in groups)


def default_num_units(total_bytes: int) -> int:
    """How many units suit a corpus of this size."""
    small_corpus_units = min(SMALL_CORPUS_UNITS, math.ceil(total_bytes / SMALL_UNIT_BYTES))
    return max(1, small_corpus_units, math.ceil(total_bytes / LARGE_UNIT_BYTES))


def balanced_groups(sizes: Sequence[int], num_groups: int) -> list[range]:
    """Contiguous index ranges over `sizes`, at most `wanted`, of nearly equal sums, none empty.

    An item goes where its middle falls on the line cut into `wanted` equal lengths.
    """
    total = max(sum(sizes), 1)
    groups: list[range] = []
    position, previous = 0, -1
    for i, size in enumerate(sizes):
        group = min((2 * position + size) * num_groups // (2 * total), num_groups - 1)
        if group != previous:
            groups.append(range(i, i + 1))
        else:
            groups[-1] = range(groups[-1].start, i + 1)
        position, previous = position + size, group
    return groups


def describe_files(
    source: TextFiles, files: Sequence[SourceFile], split: str
) -> tuple[dict[str, Any], str]:
    """What the manifest tells of the files, and a digest by which a change is noticed.

    The digest covers each file's name, size and time of change; the manifest leaves times out.
    """
    description = {
        "kind": "text files",
        "patterns": list(source.patterns(split)),
        "document_unit": source.document_unit,
        "json_field": source.json_field,
        "encoding": source.encoding,
        "errors": source.errors,
        "files": len(files),
        "bytes": sum(file.size_bytes for file in files),
    }
    file_stats = [
        [os.path.basename(file.path), file.size_bytes, file.modified_ns] for file in files
    ]
    return description, hashlib.sha256(json.dumps(file_stats).encode()).hexdigest()
