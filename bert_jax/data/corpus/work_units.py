"""Divides the documents of a source into work units, one for each output shard.

The division depends only on the list of files, so that any machine that writes shard k reads the
same bytes in the same order.
"""

import functools
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bert_jax.data.corpus.documents import DocumentsConfig, EncodedDocument, encode_document
from bert_jax.data.corpus.source_files import SourceFile
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.text.sentences import get_sentence_splitter
from bert_jax.text.tokenizer import Tokenizer

# Called with (number of finished documents, size of their text).
ProgressCallback = Callable[[int, int], None]

# A small corpus has enough units for many workers; a large one has shards of a practical size.
SMALL_UNIT_BYTES = 2**20
LARGE_UNIT_BYTES = 256 * 2**20
SMALL_CORPUS_UNITS = 64


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
    file_stats = [[os.path.basename(file.path), file.size_bytes, file.version] for file in files]
    return description, hashlib.sha256(json.dumps(file_stats).encode()).hexdigest()
