"""Plans the work units of `bert-jax prepare`, and writes the manifest when they are done.

The division depends only on the list of files, so that any machine that writes shard k reads the
same bytes in the same order.

The plan follows from the command and the source files: settings, tokenizer, work units. It is
written to the output folder first (plan.json), the metadata of each shard contains its fingerprint,
and the manifest is written last. A run can therefore be stopped at any time and continued later,
and a command with other settings is detected.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bert_jax.data.corpus.contamination.found_items import copy_items_of_files, curation_counts
from bert_jax.data.corpus.manifest import (
    CorpusCounts,
    CorpusShard,
    Manifest,
    content_fingerprint,
    write_manifest,
)
from bert_jax.data.corpus.shards import (
    DocumentsConfig,
    EncodedDocument,
    encode_document,
    ids_dtype,
    shard_file_name,
)
from bert_jax.data.corpus.source_files import SourceFile
from bert_jax.data.corpus.sources import RegisteredTask, TextFiles
from bert_jax.errors import ConfigError, UserError, check_range
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.sentences import get_sentence_splitter
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.version import __version__

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


# By size and order only, and unit k becomes shard k: the bytes do not depend on the number of
# workers, on restarts, or on Beam.
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
    # Without the folder, so that the source may be moved between two starts.
    file_stats = [[os.path.basename(file.path), file.size_bytes, file.version] for file in files]
    return description, hashlib.sha256(json.dumps(file_stats).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Configures `bert-jax prepare`: text from `source` to a prepared corpus in `output`.

    `tokenizer` is a path for `load_tokenizer`; a registered task has its own. `num_shards` is the
    largest number of shards (default: depends on the size of the corpus).
    """

    source: TextFiles | RegisteredTask
    output: str
    tokenizer: str | None = None
    split: str = "train"
    documents: DocumentsConfig = field(default_factory=DocumentsConfig)
    num_shards: int | None = None

    def __post_init__(self) -> None:
        if self.num_shards is not None:
            check_range("num_shards", self.num_shards, at_least=1)
        if isinstance(self.source, TextFiles) and self.tokenizer is None:
            raise ConfigError(
                "text files need a tokenizer; train one with `bert-jax tokenizer train`"
            )


@dataclass(frozen=True, kw_only=True)
class PreparePlan:
    """Holds the plan of a corpus; work unit k is written as shard k."""

    task: str | None
    source: dict[str, Any]
    source_digest: str
    settings: dict[str, Any]
    tokenizer: Tokenizer
    documents: DocumentsConfig
    units: tuple[FileUnit, ...] | tuple[TaskUnit, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns what must be the same for finished shards to be kept.

        File name patterns are left out, because `source_digest` covers the files they match.
        """
        return {
            # Another version may clean or split text differently, and shards of both would be one
            # corpus.
            "bert_jax": __version__,
            "task": self.task,
            "source": {k: v for k, v in self.source.items() if k != "patterns"},
            "source_digest": self.source_digest,
            "settings": self.settings,
            "tokenizer_fingerprint": self.tokenizer.fingerprint,
            "shards": len(self.units),
        }

    @property
    def fingerprint(self) -> str:
        """Returns the hash of the plan, which the metadata of its shards contains."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    @property
    def source_paths(self) -> list[str]:
        """Returns the paths of the text files; none for other sources."""
        units = [unit for unit in self.units if isinstance(unit, FileUnit)]
        return [file.path for unit in units for file in unit.files]

    @property
    def shard_files(self) -> list[str]:
        """Returns the file names of the shards, in the order of the work units."""
        return [shard_file_name(k, len(self.units)) for k in range(len(self.units))]


def make_prepare_plan(config: PrepareConfig) -> PreparePlan:
    """Makes the plan of a corpus from its source.

    Raises:
      UserError: files, split, task or tokenizer do not exist.
    """
    if isinstance(config.source, RegisteredTask):
        return _plan_from_task(config, config.source)
    return plan_from_files(config, config.source, config.source.list_files(config.split))


def plan_from_files(
    config: PrepareConfig,
    source: TextFiles,
    files: Sequence[SourceFile],
    *,
    tokenizer: str | None = None,
    splitter: str | None = None,
    task: str | None = None,
) -> PreparePlan:
    """Makes the plan for text files; a task sets its own tokenizer and splitter."""
    path = tokenizer or config.tokenizer
    assert path is not None
    documents = dataclasses.replace(
        config.documents, splitter=splitter or config.documents.splitter
    )
    get_sentence_splitter(documents.splitter)  # raise for an unknown name before any work
    source_description, digest = describe_files(source, files, config.split)
    return PreparePlan(
        task=task,
        source=source_description,
        source_digest=digest,
        settings=_settings(config.split, documents),
        tokenizer=load_tokenizer(path),
        documents=documents,
        units=make_file_units(source, files, config.num_shards),
    )


def _plan_from_task(config: PrepareConfig, registered_task: RegisteredTask) -> PreparePlan:
    from bert_jax.data.seqio.text_tasks import find_task, num_source_shards, read_task_settings

    task = find_task(registered_task.name, registered_task.module)
    task_settings = read_task_settings(task)
    if task_settings.files is not None:
        return plan_from_files(
            config,
            task_settings.files,
            task_settings.files.list_files(config.split),
            tokenizer=task_settings.tokenizer,
            splitter=task_settings.splitter,
            task=registered_task.name,
        )
    documents = dataclasses.replace(config.documents, splitter=task_settings.splitter)
    num_units = num_source_shards(task, config.split, config.num_shards)
    return PreparePlan(
        task=registered_task.name,
        source={"kind": "seqio", "source": str(task.source), "shards": num_units},
        source_digest="",
        settings=_settings(config.split, documents),
        tokenizer=load_tokenizer(task_settings.tokenizer),
        documents=documents,
        units=tuple(
            TaskUnit(
                task=registered_task.name,
                module=registered_task.module,
                split=config.split,
                shard_index=k,
                num_shards=num_units,
            )
            for k in range(num_units)
        ),
    )


def _settings(split: str, documents: DocumentsConfig) -> dict[str, Any]:
    return {"split": split, **dataclasses.asdict(documents)}


def finalize_corpus(folder: Path, plan: PreparePlan, shards: Sequence[CorpusShard]) -> Manifest:
    """Numbers the documents over all shards, adds up the counts and writes the manifest.

    Raises:
      UserError: all documents were dropped.
    """
    counts, dropped, shards_with_offsets = CorpusCounts(), Counter[str](), []
    for shard in shards:
        shards_with_offsets.append(dataclasses.replace(shard, first_document=counts.documents))
        counts += shard.counts
        dropped.update(shard.dropped)
    if not counts.documents:
        reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(dropped.items())) or "none read"
        raise UserError(f"the corpus has no documents to train on; dropped: {reasons}")
    curation = curation_counts(plan.source_paths)
    manifest = Manifest(
        source=plan.source | ({"curation": curation} if curation else {}),
        task=plan.task,
        settings=plan.settings,
        counts=counts,
        dropped=dict(sorted(dropped.items())),
        tokenizer_fingerprint=plan.tokenizer.fingerprint,
        vocab_size=plan.tokenizer.vocab_size,
        dtype=ids_dtype(plan.tokenizer.vocab_size).name,
        max_part_tokens=plan.documents.max_part_tokens,
        shards=tuple(shards_with_offsets),
        fingerprint="",
        versions=_versions(),
    )
    manifest = dataclasses.replace(manifest, fingerprint=content_fingerprint(manifest))
    copy_items_of_files(plan.source_paths, folder)
    write_manifest(folder, manifest)
    return manifest


def _versions() -> dict[str, str]:
    packages = ("array_record", "numpy", "tokenizers")
    return {"bert_jax": __version__} | {name: importlib.metadata.version(name) for name in packages}
