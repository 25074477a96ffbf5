"""Prepares a corpus with Apache Beam, for more text than fits on one machine.

    python -m bert_jax.data.corpus.beam --files 'books/*.txt.gz' --tokenizer vocabulary \\
        --output prepared --runner DirectRunner

It needs its own environment (requirements-beam.txt) and imports neither seqio nor TensorFlow. An
element of the pipeline is one work unit, which becomes one shard. The functions are those of
`bert-jax prepare --files`, so that the shards have the same bytes. Files and output may be in any
file system that Beam supports (gs://, s3://, hdfs://); the files of a unit are then copied to the
worker, and its shard is copied back. Flags that are not listed here are passed to Beam. Workers
need this package, without its dependencies, and requirements-beam.txt, for example in a container
image.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from bert_jax.config.flags import REQUIRED, add_flags, flag, from_namespace
from bert_jax.data.corpus.manifest import (
    MANIFEST_FILE,
    PLAN_FILE,
    TOKENIZER_FOLDER,
    CorpusShard,
    Manifest,
)
from bert_jax.data.corpus.output_folder import lock_folder, open_output_folder
from bert_jax.data.corpus.plan import (
    FileUnit,
    PrepareConfig,
    PreparePlan,
    finalize_corpus,
    plan_from_files,
)
from bert_jax.data.corpus.prepare_flags import FilesArguments, format_summary
from bert_jax.data.corpus.shards import (
    finished_shard,
    read_shard_metadata,
    shard_metadata_path,
    write_shard,
)
from bert_jax.data.corpus.source_files import SourceFile, is_remote
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.errors import UserError
from bert_jax.text.load_tokenizer import load_tokenizer


# Type checks run without Beam, where its classes are unknown.
class WriteShardFn(beam.DoFn):  # pyright: ignore[reportUntypedBaseClass]
    """Writes the shard of each (shard index, work unit) to the output folder; yields the index."""

    def __init__(self, output: str, plan: PreparePlan, tokenizer_files: dict[str, bytes]):
        self._output = output
        self._shard_files = plan.shard_files
        self._documents = plan.documents
        self._plan_fingerprint = plan.fingerprint
        self._tokenizer_files = tokenizer_files

    def setup(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in self._tokenizer_files.items():
                (Path(folder) / name).write_bytes(content)
            self._tokenizer = load_tokenizer(folder)

    def process(self, element: tuple[int, FileUnit]) -> Iterator[int]:
        shard_index, unit = element
        with tempfile.TemporaryDirectory() as scratch:
            path = _local_folder(self._output, scratch) / self._shard_files[shard_index]
            shard = write_shard(
                path,
                _fetch_files(unit, scratch).encoded_documents(
                    self._tokenizer, self._documents, _ignore_progress
                ),
                max_part_tokens=self._documents.max_part_tokens,
                plan_fingerprint=self._plan_fingerprint,
            )
            if is_remote(self._output):
                # The metadata last: where it exists, the shard counts as complete.
                for name in (shard.records_file, shard.index_file, shard_metadata_path(path).name):
                    _copy(str(path.with_name(name)), FileSystems.join(self._output, name))
        yield shard_index


def run(
    config: PrepareConfig, beam_arguments: Sequence[str] = (), *, overwrite: bool = False
) -> Manifest:
    """Prepares text files as `prepare` does, with the runner that `beam_arguments` name.

    Raises:
      UserError: as `prepare`.
    """
    assert isinstance(config.source, TextFiles)
    plan = plan_from_files(config, config.source, _list_files(config.source, config.split))
    with tempfile.TemporaryDirectory() as scratch:
        folder = _local_folder(config.output, scratch)
        with lock_folder(folder):
            _open_output(config.output, folder, plan, overwrite=overwrite)
            shards = _finished_shards(config.output, folder, plan, verify=True)
            pending_units = [(k, plan.units[k]) for k, shard in enumerate(shards) if shard is None]
            if pending_units:
                _run_pipeline(config.output, folder, plan, pending_units, beam_arguments)
                shards = _finished_shards(config.output, folder, plan, verify=False)
            manifest = finalize_corpus(
                folder, plan, [shard for shard in shards if shard is not None]
            )
            if is_remote(config.output):
                _copy(str(folder / MANIFEST_FILE), FileSystems.join(config.output, MANIFEST_FILE))
    return manifest


def _run_pipeline(
    output: str,
    folder: Path,
    plan: PreparePlan,
    pending_units: Sequence[tuple[int, Any]],
    beam_arguments: Sequence[str],
) -> None:
    tokenizer_files = {
        path.name: path.read_bytes() for path in (folder / TOKENIZER_FOLDER).iterdir()
    }
    with beam.Pipeline(options=PipelineOptions(list(beam_arguments))) as pipeline:
        _ = (
            pipeline
            | "units" >> beam.Create(pending_units)
            # Without it Beam may fuse the steps, and one worker would write all shards.
            | "spread" >> beam.Reshuffle()
            | "write shards" >> beam.ParDo(WriteShardFn(output, plan, tokenizer_files))
        )


def _list_files(source: TextFiles, split: str) -> tuple[SourceFile, ...]:
    patterns = source.patterns(split)
    if not any(map(is_remote, patterns)):
        return source.list_files(split)
    source_files = {
        status.path: SourceFile(
            status.path, status.size_in_bytes, int(status.last_updated_in_seconds * 1e9)
        )
        for result in FileSystems.match(list(patterns))
        for status in result.metadata_list
    }
    if not sum(file.size_bytes for file in source_files.values()):
        raise UserError(f"{', '.join(patterns)}: no file matches, or all files are empty")
    return tuple(source_files[path] for path in sorted(source_files))


def _open_output(output: str, folder: Path, plan: PreparePlan, *, overwrite: bool) -> None:
    """Prepares the output folder for a plan; `folder` is the local copy of a remote one."""
    if not is_remote(output):
        open_output_folder(folder, plan, overwrite=overwrite)
        return
    if overwrite and (old_files := [FileSystems.join(output, n) for n in _remote_names(output)]):
        FileSystems.delete([path for path in old_files if not path.endswith("/")])
    elif PLAN_FILE in _remote_names(output):
        _copy(FileSystems.join(output, PLAN_FILE), str(folder / PLAN_FILE))
    open_output_folder(folder, plan, overwrite=False)
    for path in (*(folder / TOKENIZER_FOLDER).iterdir(), folder / PLAN_FILE):
        name = path.relative_to(folder).as_posix()
        _copy(str(path), FileSystems.join(output, name))


def _finished_shards(
    output: str, folder: Path, plan: PreparePlan, *, verify: bool
) -> list[CorpusShard | None]:
    """Returns the complete shards of the output folder, and None for the others.

    Of remote shards, only the metadata is checked.

    Args:
      verify: whether to compare the bytes of local shards with their checksums too.
    """
    paths, fingerprint = [folder / name for name in plan.shard_files], plan.fingerprint
    if not is_remote(output):
        read_shard = finished_shard if verify else read_shard_metadata
        return [read_shard(path, fingerprint) for path in paths]
    remote_names = _remote_names(output)
    for path in paths:
        if shard_metadata_path(path).name in remote_names:
            _copy(
                FileSystems.join(output, shard_metadata_path(path).name),
                str(shard_metadata_path(path)),
            )
    shards = [read_shard_metadata(path, fingerprint) for path in paths]
    return [s if s and {s.records_file, s.index_file} <= remote_names else None for s in shards]


def _remote_names(output: str) -> set[str]:
    (result,) = FileSystems.match([FileSystems.join(output, "*")])
    return {FileSystems.split(status.path)[1] for status in result.metadata_list}


def _fetch_files(unit: FileUnit, scratch: str) -> FileUnit:
    """Copies the remote files of a unit to `scratch`; returns the unit with the new paths."""
    paths = []
    for file_index, file in enumerate(unit.files):
        path = file.path
        if is_remote(path):
            path = f"{scratch}/{file_index}/{FileSystems.split(path)[1]}"
            Path(path).parent.mkdir()
            _copy(file.path, path)
        paths.append(path)
    return unit.with_paths(paths)


def _local_folder(output: str, scratch: str) -> Path:
    folder = Path(scratch) / "output" if is_remote(output) else Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _copy(source: str, target: str) -> None:
    """Copies bytes without decompression; the target appears when it is complete."""
    uncompressed = CompressionTypes.UNCOMPRESSED
    # A killed worker leaves a name that nobody reads; Beam may run the same unit a second time.
    tmp_target = target + ".partial"
    with FileSystems.open(source, compression_type=uncompressed) as reader:
        with FileSystems.create(tmp_target, compression_type=uncompressed) as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
    FileSystems.rename([tmp_target], [target])


def _ignore_progress(num_documents: int, text_size: int) -> None:
    """Does nothing: Beam's runners show progress."""


@dataclass(frozen=True, kw_only=True)
class _Arguments(FilesArguments):
    files: tuple[str, ...] = flag("GLOB", "text or .jsonl files, plain or compressed", REQUIRED)
    tokenizer: str = flag("PATH", "local file or folder", REQUIRED)


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bert_jax.data.corpus.beam",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_flags(parser, _Arguments)
    namespace, beam_arguments = parser.parse_known_args(arguments)
    try:
        args = from_namespace(_Arguments, namespace)
        manifest = run(args.files_config(), beam_arguments, overwrite=args.overwrite)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(format_summary(manifest, args.output))
    return 0


if __name__ == "__main__":
    # Import under its own name: workers cannot import WriteShardFn from __main__.
    from bert_jax.data.corpus.beam import main as importable_main

    sys.exit(importable_main(sys.argv[1:]))
