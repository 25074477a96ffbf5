"""What one `prepare` is going to do, and the manifest of what it has done.

The plan is a function of the request and of the files found: settings, vocabulary, work units. It
is written into the output folder first (plan.json), each shard's note names it, and the manifest
closes the folder; so a run can stop anywhere and go on later, and a changed request is noticed.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax import __version__
from bert_jax.data.documents import DocumentsConfig
from bert_jax.data.manifest import (
    Counts,
    Manifest,
    Shard,
    content_fingerprint,
    write_manifest,
)
from bert_jax.data.records import ids_dtype, shard_file
from bert_jax.data.sources import (
    FileUnit,
    RegisteredTask,
    SourceFile,
    TaskUnit,
    TextFiles,
    describe_files,
    file_units,
)
from bert_jax.errors import ConfigError, UserError
from bert_jax.text.sentences import get_splitter
from bert_jax.text.vocabulary import Vocabulary, load_vocabulary


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """A request: text `source` -> prepared corpus in the folder `output`.

    `vocabulary` is a path for load_vocabulary; a registered task has its own. `shards` is the most
    output shards to make (default: by the size of the corpus).
    """

    source: TextFiles | RegisteredTask
    output: str
    vocabulary: str | None = None
    split: str = "train"
    documents: DocumentsConfig = field(default_factory=DocumentsConfig)
    shards: int | None = None

    def __post_init__(self) -> None:
        if self.shards is not None and self.shards < 1:
            raise ConfigError(f"shards is {self.shards}; expected at least 1")
        if isinstance(self.source, TextFiles) and self.vocabulary is None:
            raise ConfigError("text files need a vocabulary; learn one with `bert-jax vocab learn`")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything settled: work unit k becomes shard k."""

    task: str | None
    source: dict[str, Any]
    source_digest: str
    settings: dict[str, Any]
    vocabulary: Vocabulary
    documents: DocumentsConfig
    units: tuple[FileUnit, ...] | tuple[TaskUnit, ...]

    def to_json(self) -> dict[str, Any]:
        """What must stay the same for finished shards to be kept.

        Not the patterns: the files that they find are what counts.
        """
        return {
            "bert_jax": __version__,
            "task": self.task,
            "source": {k: v for k, v in self.source.items() if k != "patterns"},
            "source_digest": self.source_digest,
            "settings": self.settings,
            "vocabulary_fingerprint": self.vocabulary.fingerprint,
            "shards": len(self.units),
        }

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    @property
    def shard_files(self) -> list[str]:
        """The file name of each unit's shard."""
        return [shard_file(k, len(self.units)) for k in range(len(self.units))]


def make_plan(config: PrepareConfig) -> Plan:
    """Looks at the source and settles what there is to do.

    Raises:
      UserError: files, split, task or vocabulary that are not there.
    """
    if isinstance(config.source, RegisteredTask):
        return _task_plan(config, config.source)
    return file_plan(config, config.source, config.source.list_files(config.split))


def file_plan(
    config: PrepareConfig,
    source: TextFiles,
    files: Sequence[SourceFile],
    *,
    vocabulary: str | None = None,
    splitter: str | None = None,
    task: str | None = None,
) -> Plan:
    """The plan for listed text files; a task brings its own vocabulary and splitter."""
    path = vocabulary or config.vocabulary
    assert path is not None
    documents = dataclasses.replace(
        config.documents, splitter=splitter or config.documents.splitter
    )
    get_splitter(documents.splitter)  # an unknown name is told before any work
    told, digest = describe_files(source, files, config.split)
    return Plan(
        task=task,
        source=told,
        source_digest=digest,
        settings=_settings(config.split, documents),
        vocabulary=load_vocabulary(path),
        documents=documents,
        units=file_units(source, files, config.shards),
    )


def _task_plan(config: PrepareConfig, request: RegisteredTask) -> Plan:
    from bert_jax.data.tasks import find_task, source_shards, task_steps

    task = find_task(request.name, request.module)
    steps = task_steps(task)
    if steps.files is not None:
        return file_plan(
            config,
            steps.files,
            steps.files.list_files(config.split),
            vocabulary=steps.vocabulary,
            splitter=steps.splitter,
            task=request.name,
        )
    documents = dataclasses.replace(config.documents, splitter=steps.splitter)
    total = source_shards(task, config.split, config.shards)
    return Plan(
        task=request.name,
        source={"kind": "seqio", "source": str(task.source), "shards": total},
        source_digest="",
        settings=_settings(config.split, documents),
        vocabulary=load_vocabulary(steps.vocabulary),
        documents=documents,
        units=tuple(
            TaskUnit(
                task=request.name,
                module=request.module,
                split=config.split,
                number=k,
                total=total,
            )
            for k in range(total)
        ),
    )


def _settings(split: str, documents: DocumentsConfig) -> dict[str, Any]:
    return {"split": split, **dataclasses.asdict(documents)}


def finish(folder: Path, plan: Plan, shards: Sequence[Shard]) -> Manifest:
    """Numbers the documents through, adds up and writes the manifest.

    Raises:
      UserError: not one document is left.
    """
    counts, dropped, numbered = Counts(), Counter[str](), []
    for shard in shards:
        numbered.append(dataclasses.replace(shard, first_document=counts.documents))
        counts += shard.counts
        dropped.update(shard.dropped)
    if not counts.documents:
        reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(dropped.items())) or "none read"
        raise UserError(f"no document is left to train on; dropped: {reasons}")
    manifest = Manifest(
        source=plan.source,
        task=plan.task,
        settings=plan.settings,
        counts=counts,
        dropped=dict(sorted(dropped.items())),
        vocabulary_fingerprint=plan.vocabulary.fingerprint,
        vocabulary_size=plan.vocabulary.size,
        dtype=ids_dtype(plan.vocabulary.size).name,
        max_part_tokens=plan.documents.max_part_tokens,
        shards=tuple(numbered),
        fingerprint="",
        versions=_versions(),
    )
    manifest = dataclasses.replace(manifest, fingerprint=content_fingerprint(manifest))
    write_manifest(folder, manifest)
    return manifest


def _versions() -> dict[str, str]:
    packages = ("array_record", "numpy", "tokenizers")
    return {"bert_jax": __version__} | {name: importlib.metadata.version(name) for name in packages}
