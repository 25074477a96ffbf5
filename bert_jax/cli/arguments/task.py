"""Defines the flags that name a fine-tuning task and its data files."""

import argparse
from typing import Any, cast

from bert_jax.config.labeled_data import (
    COLUMNS_KINDS,
    GLUE_NAMES,
    Columns,
    Conll,
    Glue,
    GlueName,
    Snli,
    Squad,
    Swag,
    TaskConfig,
)
from bert_jax.errors import ConfigError, check_range

TASKS_HELP = """\
TASK is one of
  glue/NAME  with --glue-dir, the folder of the official files, or without, from TFDS
             (NAME: cola sst2 mrpc stsb qqp mnli qnli rte wnli ax)
  snli       with --snli-dir, the folder of the official files
  squad      with --train, --dev, --test: JSON files; --squad-version 2.0 if some have no answer
  conll      with --train, --dev, --test: a word and its tag on each line
  swag       with --train, --dev, --test: CSV files with endings to choose from
  columns    with --train, --dev, --test: your CSV, TSV, JSONL or Parquet; --text, --label, ...
"""

_FILES = ("train", "dev", "test")
# Task -> the flags that it takes. They are names of fields of its config, except _FLAG_TO_FIELD.
_TASK_FLAGS: dict[str, tuple[str, ...]] = {
    "glue": ("glue_dir",),
    "snli": ("snli_dir",),
    "squad": (*_FILES, "squad_version", "strict"),
    "conll": (*_FILES, "word_column", "tag_column", "strict", "encoding"),
    "swag": (*_FILES, "encoding"),
    "columns": (*_FILES, "text", "text_pair", "label", "id", "kind", "encoding"),
}
_FLAG_TO_FIELD = {"glue_dir": "folder", "snli_dir": "folder", "squad_version": "version"}


def add_task_arguments(parser: argparse.ArgumentParser) -> argparse.Action:
    """Adds TASK and the flags of its data; returns the action of TASK.

    No flag has a default, so `task_config` can tell which flags the user gave.
    """
    task = parser.add_argument(
        "task",
        metavar="TASK",
        help="glue/NAME, snli, squad, conll, swag or columns; of finetune also text2text",
    )
    data = parser.add_argument_group("data of the task")
    data.add_argument("--glue-dir", metavar="DIR", help="folder with CoLA/train.tsv and so on")
    data.add_argument(
        "--snli-dir", metavar="DIR", help="folder with snli_1.0_train.jsonl and so on"
    )
    for split in _FILES:
        data.add_argument(f"--{split}", metavar="FILE", help=f"{split} examples, plain or .gz")
    data.add_argument(
        "--squad-version", choices=("1.1", "2.0"), help="format of the SQuAD files (default: 1.1)"
    )
    data.add_argument(
        "--word-column",
        type=int,
        metavar="N",
        help="column of the words, counted from 0 (default: 0)",
    )
    data.add_argument(
        "--tag-column", type=int, metavar="N", help="column of the tags (default: -1, the last)"
    )
    data.add_argument(
        "--strict",
        action="store_true",
        default=None,
        help="error on malformed tags and misplaced answers, which are otherwise repaired",
    )
    data.add_argument("--text", metavar="COLUMN", help="column of the text")
    data.add_argument("--text-pair", metavar="COLUMN", help="column of the second text")
    data.add_argument("--label", metavar="COLUMN", help="column of the label")
    data.add_argument("--id", metavar="COLUMN", help="column of the ids (default: row numbers)")
    data.add_argument(
        "--kind",
        choices=COLUMNS_KINDS,
        help="type of the labels; ranking trains a cross-encoder on pairs with labels from 0 to 1 "
        "(default: classification or regression, inferred from the labels)",
    )
    data.add_argument(
        "--encoding",
        metavar="NAME",
        help="encoding of the files of conll, swag and columns (default: utf-8)",
    )
    return task


def add_contamination_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --contamination."""
    parser.add_argument(
        "--contamination",
        metavar="DIR",
        help="output folder of `bert-jax curate` with a step Decontamination; the metrics are then "
        "also computed on the examples that are not in the pretraining corpus (default: the folder "
        "of the model, if it has the file contamination-items.parquet)",
    )


def add_num_seeds_argument(parser: Any, default: int) -> None:
    """Adds --num-seeds to a parser or to a group of flags."""
    parser.add_argument(
        "--num-seeds",
        type=int,
        default=default,
        metavar="N",
        help=f"number of runs of each setting, with the seeds 0 to N-1 (default: {default})",
    )


def seeds_from_count(args: argparse.Namespace) -> tuple[int, ...]:
    """Returns the seeds that --num-seeds describes; raises a ConfigError if it is out of range."""
    check_range("--num-seeds", args.num_seeds, at_least=1, at_most=1000)
    return tuple(range(args.num_seeds))


def task_config(args: argparse.Namespace) -> TaskConfig:
    """Returns the config of the task that the flags describe.

    Raises:
      ConfigError: the task is unknown, does not take a flag, or needs one that is missing.
    """
    task, _, glue_name = args.task.partition("/")
    if task not in _TASK_FLAGS or bool(glue_name) != (task == "glue"):
        raise ConfigError(f"no task {args.task!r}; {TASKS_HELP}".rstrip())
    given = {
        flag: value
        for flag in dict.fromkeys(flag for flags in _TASK_FLAGS.values() for flag in flags)
        if (value := getattr(args, flag)) is not None
    }
    for flag in given:
        if flag not in _TASK_FLAGS[task]:
            raise ConfigError(
                f"{_flag_name(flag)} is not an option of the task {args.task}; its options are "
                f"{', '.join(map(_flag_name, _TASK_FLAGS[task]))}"
            )
    for required in {"snli": ("snli_dir",), "columns": ("text",)}.get(task, ()):
        if required not in given:
            raise ConfigError(f"{args.task} needs {_flag_name(required)}")
    fields = {_FLAG_TO_FIELD.get(flag, flag): value for flag, value in given.items()}
    match task:
        case "glue":
            if glue_name not in GLUE_NAMES:
                raise ConfigError(
                    f"GLUE has no task {glue_name!r}; expected one of {', '.join(GLUE_NAMES)}"
                )
            return Glue(task=cast(GlueName, glue_name), **fields)
        case "snli":
            return Snli(**fields)
        case "squad":
            return Squad(**fields)
        case "conll":
            return Conll(**fields)
        case "swag":
            return Swag(**fields)
        case _:
            return Columns(**fields)


def task_command(args: argparse.Namespace) -> list[str]:
    """Returns TASK and its flags as the user gave them, for the command line of a subprocess."""
    command = [args.task]
    for flag in dict.fromkeys(flag for flags in _TASK_FLAGS.values() for flag in flags):
        value = getattr(args, flag)
        if value is not None:
            # As one word, because argparse would read a value that begins with "-" as a flag.
            command.append(_flag_name(flag) if value is True else f"{_flag_name(flag)}={value}")
    return command


def _flag_name(dest: str) -> str:
    return f"--{dest.replace('_', '-')}"
