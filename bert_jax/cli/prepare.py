"""`bert-jax prepare`: documents -> sharded token ids that training reads at random."""

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

HELP = "clean, split and tokenise documents into a prepared corpus"

EPILOG = """\
examples:
  text files, each a document, and some of them held out:
    bert-jax prepare --files 'books/*.txt.gz' --vocab vocabulary --output prepared/train
    bert-jax prepare --files 'held_out/*.txt.gz' --vocab vocabulary --output prepared/held_out
  JSON lines, one document each:
    bert-jax prepare --files 'wiki/*.jsonl.gz' --vocab vocabulary --output prepared
  a seqio task, registered in a file of your own (see bert_jax/data/seqio/text_tasks.py):
    bert-jax prepare --task books --module my_tasks.py --split validation --output prepared

A run that was stopped goes on where it was when the same command is given again. The result is
the same, byte for byte, with any number of workers.
"""

FILE_FLAGS = ("vocab", "documents_by", "json_field", "encoding", "errors", "splitter")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--files",
        nargs="+",
        metavar="GLOB",
        help="text, .jsonl and .gz files; quote patterns to hand them over whole",
    )
    source.add_argument("--task", metavar="NAME", help="a registered seqio task")
    parser.add_argument("--output", required=True, metavar="DIR", help="the prepared corpus")
    files = parser.add_argument_group("with --files")
    files.add_argument("--vocab", metavar="PATH", help="vocabulary file or folder (required)")
    add_reading_arguments(files)
    task = parser.add_argument_group("with --task")
    task.add_argument("--module", metavar="FILE", help="Python file that registers the task")
    task.add_argument("--split", metavar="NAME", help="split to prepare (default: train)")
    writing = parser.add_argument_group("how it is written")
    add_writing_arguments(writing)
    writing.add_argument(
        "--workers", type=int, metavar="N", help="processes (default: one for each core)"
    )


def run(args: argparse.Namespace) -> None:
    if args.workers is not None and args.workers < 1:
        raise ConfigError(f"--workers {args.workers}: expected at least 1")
    config = prepare_config_from_args(args) if args.files else _task_config(args)
    if args.files:
        for flag in ("module", "split"):
            if getattr(args, flag) is not None:
                raise ConfigError(f"--{flag} goes with --task")
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
            raise ConfigError(f"{flag} goes with --files; the task {args.task!r} has its own")
    return PrepareConfig(
        source=RegisteredTask(name=args.task, module=args.module),
        output=args.output,
        split=args.split or "train",
        documents=DocumentsConfig(max_part_tokens=args.max_part_tokens),
        num_shards=args.shards,
    )
