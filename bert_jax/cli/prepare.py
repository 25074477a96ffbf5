"""Runs `bert-jax prepare`: tokenizes documents into the sharded corpus for pretraining."""

import argparse
from typing import TYPE_CHECKING

from bert_jax.data.corpus.prepare_flags import (
    add_reading_arguments,
    add_writing_arguments,
    format_summary,
    prepare_config_from_args,
)
from bert_jax.errors import ConfigError

if TYPE_CHECKING:
    from bert_jax.data.corpus.plan import PrepareConfig

HELP = "clean, split and tokenize documents into a prepared corpus"

EPILOG = """\
examples:
  text files, one document each, and a held-out set:
    bert-jax prepare --files 'books/*.txt.gz' --tokenizer vocabulary --output prepared/train
    bert-jax prepare --files 'held_out/*.txt.gz' --tokenizer vocabulary --output prepared/held_out
  JSON lines, one document each:
    bert-jax prepare --files 'wiki/*.jsonl.gz' --tokenizer vocabulary --output prepared
  a seqio task that your own module registers (see bert_jax/data/seqio/text_tasks.py):
    bert-jax prepare --task books --module my_tasks.py --split validation --output prepared

The same command resumes after a stop. The files written are identical, byte for byte, with any
number of workers.
"""

FILE_FLAGS = ("tokenizer", "document_unit", "json_field", "encoding", "errors", "splitter")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the source of documents (--files or --task), --output, and how both are read."""
    parser.epilog = EPILOG
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--files",
        nargs="+",
        metavar="GLOB",
        help="text or .jsonl files, plain or compressed (.gz, .bz2, .zst); quote glob patterns",
    )
    source.add_argument("--task", metavar="NAME", help="registered seqio task")
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="folder of the prepared corpus"
    )
    files = parser.add_argument_group("with --files")
    files.add_argument(
        "--tokenizer", metavar="PATH", help="file or folder of a tokenizer (required)"
    )
    add_reading_arguments(files)
    task = parser.add_argument_group("with --task")
    task.add_argument("--module", metavar="FILE", help="Python file that registers the task")
    task.add_argument("--split", metavar="NAME", help="split to prepare (default: train)")
    writing = parser.add_argument_group("output")
    add_writing_arguments(writing)
    writing.add_argument(
        "--workers", type=int, metavar="N", help="number of processes (default: one per CPU core)"
    )


def run(args: argparse.Namespace) -> None:
    """Prepares the corpus and prints a summary."""
    if args.workers is not None and args.workers < 1:
        raise ConfigError(f"--workers {args.workers}: expected at least 1")
    config = prepare_config_from_args(args) if args.files else _task_config(args)
    if args.files:
        for flag in ("module", "split"):
            if getattr(args, flag) is not None:
                raise ConfigError(
                    f"--{flag} can only be used with --task, but --files is given; remove --{flag}"
                )
    from bert_jax.data.corpus.prepare import prepare

    manifest = prepare(config, num_workers=args.workers, overwrite=args.overwrite)
    print(format_summary(manifest, args.output))


def _task_config(args: argparse.Namespace) -> "PrepareConfig":
    from bert_jax.data.corpus.documents import DocumentsConfig
    from bert_jax.data.corpus.plan import PrepareConfig
    from bert_jax.data.corpus.sources import RegisteredTask

    for name in FILE_FLAGS:
        if getattr(args, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(
                f"{flag} can only be used with --files, because the task {args.task!r} defines its "
                f"own value; remove {flag}"
            )
    return PrepareConfig(
        source=RegisteredTask(name=args.task, module=args.module),
        output=args.output,
        split=args.split or "train",
        documents=DocumentsConfig(max_part_tokens=args.max_part_tokens),
        num_shards=args.shards,
    )
