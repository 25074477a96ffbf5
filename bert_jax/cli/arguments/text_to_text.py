"""Defines the task text2text of `bert-jax finetune`: T5 or BART on two columns of texts."""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from bert_jax.cli.arguments.few_shot import few_shot_flags
from bert_jax.cli.arguments.method import method_flags
from bert_jax.cli.arguments.task import task_command
from bert_jax.config.config_lib import override
from bert_jax.config.experiment import Experiment
from bert_jax.errors import ConfigError

TEXT_TO_TEXT = "text2text"
"""The TASK of pairs of texts for encoder-decoders."""

_RECIPE = "text_to_text"
_FILES = ("train", "dev", "test", "encoding")
# Flag -> the argument of the recipe.
_SETTINGS = {
    "batch_size": "batch_size",
    "learning_rate": "learning_rate",
    "max_length": "seq_length",
    "max_target_length": "target_length",
    "seed": "seed",
}
_DEFAULT_BATCH_SIZE = 32
_DEFAULT_EPOCHS = 3
_EXAMPLE = "--source article --target summary"


def add_text_to_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --source and --max-target-length.

    The counterpart --target is also a flag of LoRA (`add_method_arguments`).
    """
    parser.add_argument(
        "--source",
        metavar="COLUMN",
        help=f"column that the encoder reads, for the task {TEXT_TO_TEXT} only; --target is the "
        "column that the decoder learns to write",
    )
    parser.add_argument(
        "--max-target-length",
        type=int,
        metavar="TOKENS",
        help=f"maximum length of a text that the decoder writes, for the task {TEXT_TO_TEXT} only "
        "(default: 64)",
    )


def refuse_columns_of_texts(args: argparse.Namespace) -> None:
    """Raises ConfigError if the flags of text2text are given with another task or a recipe."""
    task = f"--config {args.config}" if args.config else args.task
    if args.source is not None:
        remedy = "--arg source=COLUMN" if args.config else f"the task {TEXT_TO_TEXT}"
        raise ConfigError(
            f"--source {args.source} is a flag of the task {TEXT_TO_TEXT}, not of {task}; expected "
            f"{remedy}, or no --source"
        )
    if args.targets is not None and args.method is None and not args.config:
        raise ConfigError(
            f"--target {' '.join(args.targets)} needs --method lora or dora, whose layers it "
            f"names, or the task {TEXT_TO_TEXT}, whose column it names; the task is {task}"
        )


def text_to_text_experiment(args: argparse.Namespace, given: Mapping[str, Any]) -> Experiment:
    """Returns the run of the recipe text_to_text on the columns of --train and --dev.

    Args:
      args: the parsed command.
      given: the hyperparameters that the user gave as flags.

    Raises:
      ConfigError: a flag is missing, belongs to encoders, or is repeated by --arg.
    """
    from bert_jax.config.recipes import call_recipe, load_recipe
    from bert_jax.data.finetuning.readers.tabular_files import read_table

    # --target is also the flag for the layers of LoRA, which takes several words.
    columns, args.targets = args.targets or [], None
    _refuse_other_flags(args, given)
    for name in ("model", "train", "dev", "source"):
        if getattr(args, name) is None:
            raise ConfigError(f"{TEXT_TO_TEXT} needs --{name}")
    if len(columns) != 1:
        found = f"found {len(columns)}: {', '.join(columns)}" if columns else "found no --target"
        raise ConfigError(
            f"{TEXT_TO_TEXT} needs one column after --target, the one that the decoder learns to "
            f"write, as in {_EXAMPLE}; {found}"
        )
    settings = {_SETTINGS[name]: value for name, value in given.items() if name in _SETTINGS}
    batch_size = settings.setdefault("batch_size", _DEFAULT_BATCH_SIZE)
    files = {name: value for name in _FILES if (value := getattr(args, name)) is not None}
    table = read_table(args.train, args.encoding)
    epochs = given.get("epochs", _DEFAULT_EPOCHS)
    steps = max(1, round(epochs * len(table.rows) / batch_size))
    values = {**files, "source": args.source, "target": columns[0], "steps": steps, **settings}
    # As JSON, so that a column named 1 stays a text; `model` is always read as a text.
    assignments = [f"model={args.model}"]
    assignments += [
        f"{name}={value if name == 'encoding' else json.dumps(value)}"
        for name, value in values.items()
    ]
    experiment = call_recipe(load_recipe(_RECIPE), [*assignments, *args.arguments], _RECIPE)
    return override(experiment, args.overrides)


def _refuse_other_flags(args: argparse.Namespace, given: Mapping[str, Any]) -> None:
    """Raises a ConfigError for flags that text2text does not have, and for --arg of a flag."""
    if args.config is not None:
        raise ConfigError(f"TASK {TEXT_TO_TEXT} and --config {args.config}: expected one of them")
    task_flags = (word.partition("=")[0] for word in task_command(args)[1:])
    others = [flag for flag in task_flags if flag.removeprefix("--") not in _FILES]
    others += [_flag(name) for name in given if name not in {*_SETTINGS, "model", "epochs"}]
    others += few_shot_flags(args) + method_flags(args)
    others += ["--frozen-encoder"] * args.frozen_encoder
    others += ["--contamination"] * (args.contamination is not None)
    if others:
        raise ConfigError(f"{others[0]} is not an option of {TEXT_TO_TEXT}")
    flags = {name: _flag(name) for name in ("model", *_FILES, "source", "target")}
    flags |= {argument: _flag(name) for name, argument in _SETTINGS.items()}
    flags["steps"] = "--epochs"
    for assignment in args.arguments:
        name = assignment.partition("=")[0]
        # Without --epochs, steps may be given: there is no flag for a number of updates.
        if name in flags and not (name == "steps" and "epochs" not in given):
            raise ConfigError(f"--arg {assignment}: {TEXT_TO_TEXT} sets it with {flags[name]}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
