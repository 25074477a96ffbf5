"""Curates a corpus with Apache Beam, on machines that share a file system.

    python -m bert_jax.apps.curate.beam curate/web --output /mnt/shared/curated \\
        --arg files='/mnt/shared/crawl/*.jsonl.gz' --runner DirectRunner

It needs its own environment (requirements-beam.txt). The functions and the files are those of
`bert-jax curate`: the documents are the same, byte for byte before compression, and each of the two
continues what the other has begun, if Python and the packages that extract text have the same
versions. All machines must see the input, the output and the files of the recipe under the same
absolute paths, for example by NFS. Flags that are not listed here are passed to Beam. Afterwards,
the same `bert-jax curate RECIPE --output DIR` writes the report.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from bert_jax.apps.curate.cli.curation_recipe import CurationRecipe
from bert_jax.apps.curate.curate import curate_with
from bert_jax.apps.curate.workers import Workers
from bert_jax.config.flags import REQUIRED, add_flags, flag, from_namespace
from bert_jax.data.corpus.source_files import is_remote
from bert_jax.errors import ConfigError, UserError

_WAIT_SECONDS = 60


class BeamWorkers(Workers):
    """Runs the tasks of curation as the elements of Beam pipelines, one pipeline for each call.

    Args:
      arguments: flags of Beam, such as ["--runner", "FlinkRunner"].
    """

    def __init__(self, arguments: Sequence[str]):
        super().__init__(num_workers=1)
        self._arguments = list(arguments)

    def write_files(
        self,
        function: Callable[..., None],
        tasks: Mapping[Path, tuple[Any, ...]],
        *,
        description: str,
        sizes: Mapping[Path, int] | None = None,
    ) -> None:
        """Calls `function(path, *arguments)` for each path that does not exist, in one pipeline.

        Raises:
          UserError: a task failed, or files are missing here that other machines wrote.
        """
        missing = [(path, arguments) for path, arguments in tasks.items() if not path.exists()]
        if not missing:
            return
        try:
            with beam.Pipeline(options=PipelineOptions(self._arguments)) as pipeline:
                _ = (
                    pipeline
                    # The elements are indices, because Beam's coders refuse integers of 2^63 or
                    # more, which the arguments contain.
                    | "tasks" >> beam.Create(range(len(missing)))
                    | "spread" >> beam.Reshuffle()
                    | description >> beam.Map(_run_task, function, missing)
                )
        except RuntimeError as error:  # what runners raise if a task failed on another machine
            raise UserError(
                f"a task of Beam failed: {error}. Finished files are kept: correct the cause, and "
                "run the same command again"
            ) from None
        _wait_for_files([path for path, _ in missing])


def _wait_for_files(paths: Sequence[Path]) -> None:
    """Waits until files of other machines appear here; a network file system may delay them."""
    for _ in range(_WAIT_SECONDS):
        if all(path.exists() for path in paths):
            return
        time.sleep(1)
    lost = [path for path in paths if not path.exists()]
    raise UserError(
        f"Beam's workers wrote {len(lost)} files that are not in {lost[0].parent} on this machine "
        f"after {_WAIT_SECONDS} seconds; give an --output that all machines see under the same path"
    )


def _run_task(
    index: int, function: Callable[..., None], tasks: Sequence[tuple[Path, tuple[Any, ...]]]
) -> None:
    path, arguments = tasks[index]
    function(path, *arguments)


@dataclass(frozen=True, kw_only=True)
class _Arguments(CurationRecipe):
    output: str = flag("DIR", "folder that all machines see under the same path", REQUIRED)


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bert_jax.apps.curate.beam",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_flags(parser, _Arguments)
    namespace, beam_arguments = parser.parse_known_args(arguments)
    try:
        args = from_namespace(_Arguments, namespace)
        if is_remote(args.output):
            raise ConfigError(
                f"--output {args.output}: expected a folder that all machines see under one path"
            )
        config = args.curation_config()
        manifest = curate_with(config, Path(args.output).absolute(), BeamWorkers(beam_arguments))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    counts = manifest["counts"]
    print(
        f"{args.output}: kept {counts['retained_documents']:,} of {counts['documents']:,} "
        "documents; `bert-jax curate` with the same recipe and --output writes the report"
    )
    return 0


if __name__ == "__main__":
    # Import under its own name: workers cannot import functions from __main__.
    from bert_jax.apps.curate.beam import main as importable_main

    sys.exit(importable_main(sys.argv[1:]))
