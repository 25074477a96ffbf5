"""Defines the sources of documents: text files, TFDS, Python functions, or any seqio task.

A source opens nothing until it is read, and this module imports no TensorFlow. Files are divided
into *work units*, one for each output shard. The division depends only on the list of files, so
that any machine that writes shard k reads the same bytes in the same order.
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
# Called with (number of finished documents, size of their text).
ProgressCallback = Callable[[int, int], None]

# A small corpus has enough units for many workers; a large one has shards of a practical size.
SMALL_UNIT_BYTES = 2**20
LARGE_UNIT_BYTES = 256 * 2**20
SMALL_CORPUS_UNITS = 64


@dataclass(frozen=True)
class TextFiles:
    """Names text, JSONL and gzipped files by glob: `TextFiles({"train": "books/*.txt.gz"})`.

    `splits` maps the name of a split to one or more patterns; a pattern without a name is the split
    "train". `document_unit` sets what a document is in a text file: the whole file, a block of
    lines between blank lines, or a line. JSONL files have one document per line, with its text in
    the field `json_field`.
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
            raise ConfigError(
                "text files: no pattern; expected at least one, for example 'books/*.txt'"
            )
        object.__setattr__(self, "splits", splits)

    def patterns(self, split: str) -> tuple[str, ...]:
        """Returns the patterns of one split; UserError if there is no such split."""
        splits = self.splits
        assert isinstance(splits, Mapping)
        if split not in splits:
            raise UserError(f"split is {split!r}, expected one of {', '.join(splits)}")
        return tuple(splits[split])

    def list_files(self, split: str) -> "tuple[SourceFile, ...]":
        """Returns the files of a split, sorted by path.

        Raises:
          UserError: a pattern matches no file, or all files are empty.
        """
        files = tuple(SourceFile.from_path(path) for path in expand_globs(self.patterns(split)))
        if not sum(file.size_bytes for file in files):
            raise UserError(f"{', '.join(self.patterns(split))}: every file is empty")
        return files

    def read_texts(self, files: "Iterable[SourceFile]") -> Iterator[str]:
        """Yields the text of the documents in `files`, unchanged."""
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
    """Names a dataset of TensorFlow Datasets: `Tfds(dataset="wikipedia/20230601.en")`.

    `splits` may map names to TFDS slices, as {"train": "train[:99%]", "validation": "train[99%:]"};
    the default is the dataset's own splits. The text of an example is in the field `text_key`.
    """

    dataset: str
    splits: Mapping[str, str] | None = None
    text_key: str = "text"
    data_dir: str | None = None


@dataclass(frozen=True, kw_only=True)
class PythonDocuments:
    """Names functions that return documents: `PythonDocuments(splits={"train": read_my_corpus})`.

    Each function takes no arguments and returns an iterable of str, with the same documents in the
    same order in every call.
    """

    splits: Mapping[str, Callable[[], Iterable[str]]]


@dataclass(frozen=True, kw_only=True)
class RegisteredTask:
    """Names a seqio task; `module` is the Python file that registers it, or None."""

    name: str
    module: str | None = None


@dataclass(frozen=True)
class SourceFile:
    """Describes a file: path, size in bytes, time of the last change in nanoseconds."""

    path: str
    size_bytes: int
    modified_ns: int

    @classmethod
    def from_path(cls, path: str) -> "SourceFile":
        file_stat = os.stat(path)
        return cls(path, file_stat.st_size, file_stat.st_mtime_ns)

    @property
    def text_bytes(self) -> int:
        """Bytes of text, for the progress bar. A gzip file stores this size modulo 2^32."""
        if not self.path.endswith(".gz") or self.size_bytes < 18:
            return self.size_bytes
        with open(self.path, "rb") as file:
            file.seek(-4, os.SEEK_END)
            return max(self.size_bytes, int.from_bytes(file.read(4), "little"))


@dataclass(frozen=True, kw_only=True)
class FileUnit:
    """Holds the files of one output shard, in order; `source` sets how they are read."""

    source: TextFiles
    files: tuple[SourceFile, ...]

    @functools.cached_property
    def text_bytes(self) -> int:
        """Returns the approximate bytes of text, for the progress bar."""
        return sum(file.text_bytes for file in self.files)

    def encoded_documents(
        self, tokenizer: Tokenizer, config: DocumentsConfig, report_progress: ProgressCallback
    ) -> Iterator[EncodedDocument | str]:
        """Yields the encoded documents of the unit, or the reason why one is dropped."""
        splitter = get_sentence_splitter(config.splitter)
        for text in self.source.read_texts(self.files):
            yield encode_document(text, tokenizer, splitter)
            report_progress(1, len(text))

    def with_paths(self, paths: Sequence[str]) -> "FileUnit":
        """Returns the same unit with its files at `paths` (copies on another machine)."""
        pairs = zip(self.files, paths, strict=True)
        return replace(self, files=tuple(replace(file, path=path) for file, path in pairs))


@dataclass(frozen=True, kw_only=True)
class TaskUnit:
    """Holds one of the shards of a task's source; seqio, and so TensorFlow, reads it."""

    task: str
    module: str | None
    split: str
    shard_index: int
    num_shards: int

    @property
    def text_bytes(self) -> int:
        """Returns 0, because the size is unknown before the source is read."""
        return 0

    def encoded_documents(
        self, tokenizer: Tokenizer, config: DocumentsConfig, report_progress: ProgressCallback
    ) -> Iterator[EncodedDocument | str]:
        """Yields the task's documents at its cache placeholder, or why one is dropped."""
        del tokenizer, config  # the task was registered with its own
        from bert_jax.data.seqio.text_tasks import find_task, precache_documents

        task = find_task(self.task, self.module)
        for document in precache_documents(task, self.split, self.shard_index, self.num_shards):
            yield document
            report_progress(1, 0 if isinstance(document, str) else document.text_bytes)


def make_file_units(
    source: TextFiles, files: Sequence[SourceFile], num_shards: int | None
) -> tuple[FileUnit, ...]:
    """Divides files, in order, into at most `num_shards` units of similar size, none empty."""
    num_units = num_shards or default_num_units(sum(file.size_bytes for file in files))
    groups = balanced_groups([file.size_bytes for file in files], num_units)
    return tuple(FileUnit(source=source, files=tuple(files[i] for i in group)) for group in groups)


def default_num_units(total_bytes: int) -> int:
    """Returns the default number of units for a corpus of this size."""
    small_corpus_units = min(SMALL_CORPUS_UNITS, math.ceil(total_bytes / SMALL_UNIT_BYTES))
    return max(1, small_corpus_units, math.ceil(total_bytes / LARGE_UNIT_BYTES))


def balanced_groups(sizes: Sequence[int], num_groups: int) -> list[range]:
    """Divides items into at most `num_groups` contiguous ranges of similar total size, none empty.

    An item belongs to the group that contains its middle, if the total size is divided into
    `num_groups` equal parts.
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
    """Describes the files for the manifest, and returns a digest that detects changes.

    The digest covers the name, size and time of change of each file; the description has no times.
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
