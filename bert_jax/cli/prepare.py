"""Runs `bert-jax prepare`: tokenizes documents into the sharded corpus for pretraining."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_jax.config.flags import first_given, flag
from bert_jax.data.corpus.prepare_flags import READING_FLAGS, FilesArguments, format_summary
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

COMMON = ("files", "tokenizer", "output", "workers")


@dataclass(frozen=True, kw_only=True)
class Arguments(FilesArguments):
    """Names documents, in files or as a seqio task, and the folder of the prepared corpus."""

    task: str | None = flag("NAME", "registered seqio task, in place of --files")
    module: str | None = flag("FILE", "Python file that registers the task", group="with --task")
    split: str | None = flag("NAME", "split to prepare (default: train)", group="with --task")
    workers: int | None = flag("N", "number of processes (default: one per CPU core)")

    def __post_init__(self) -> None:
        if bool(self.files) == (self.task is not None):
            raise ConfigError(
                "expected one of --files, the text files, and --task, a registered seqio task; "
                f"found {'both' if self.files else 'neither'}"
            )
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"--workers {self.workers}: expected at least 1")
        if self.files and (name := first_given(self, "module", "split")):
            raise ConfigError(
                f"{name} can only be used with --task, but --files is given; remove {name}"
            )
        if self.task and (name := first_given(self, "tokenizer", "splitter", *READING_FLAGS)):
            raise ConfigError(
                f"{name} can only be used with --files, because the task {self.task!r} defines its "
                f"own value; remove {name}"
            )


def run(args: Arguments) -> None:
    """Prepares the corpus and prints a summary."""
    config = args.files_config() if args.files else _task_config(args)
    from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER
    from bert_jax.data.corpus.prepare import prepare
    from bert_jax.text.load_tokenizer import load_tokenizer

    manifest = prepare(config, num_workers=args.workers, overwrite=args.overwrite)
    print(format_summary(manifest, args.output))
    # T5's vocabulary has sentinels, and only such a recipe uses them.
    has_sentinels = bool(load_tokenizer(Path(args.output) / TOKENIZER_FOLDER).sentinel_ids)
    recipe = "t5" if has_sentinels else "small_corpus"
    corpus = shlex.quote(args.output)
    print(f"next: bert-jax pretrain {recipe} --run runs/{recipe} --arg corpus={corpus}")


def _task_config(args: Arguments) -> "PrepareConfig":
    from bert_jax.data.corpus.plan import PrepareConfig
    from bert_jax.data.corpus.shards import DocumentsConfig
    from bert_jax.data.corpus.sources import RegisteredTask

    assert args.task is not None
    return PrepareConfig(
        source=RegisteredTask(name=args.task, module=args.module),
        output=args.output,
        split=args.split or "train",
        documents=DocumentsConfig(max_part_tokens=args.max_part_tokens),
        num_shards=args.shards,
    )
