"""Defines the task text2text of `bert-jax finetune`: T5 or BART on two columns of texts."""

import argparse
from collections.abc import Mapping
from typing import Any

from bert_jax.cli.arguments.few_shot import few_shot_flags
from bert_jax.cli.arguments.method import method_flags
from bert_jax.config_lib import override
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment

TEXT_TO_TEXT = "text2text"
# Flag -> argument of the recipe text_to_text. --epochs becomes its number of steps.
_ARGUMENTS = {
    "batch_size": "batch_size",
    "learning_rate": "learning_rate",
    "seed": "seed",
    "max_length": "seq_length",
}
_EXAMPLE = "--source article --target summary"


def add_source_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --source. Its counterpart --target is also a flag of LoRA (`add_method_arguments`)."""
    parser.add_argument(
        "--source",
        metavar="COLUMN",
        help=f"column that the encoder reads, for the task {TEXT_TO_TEXT} only; --target is the "
        "column that the decoder learns to write",
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
      ConfigError: a flag is missing, or is one of encoders.
    """
    from bert_jax.data.finetuning.readers.tabular_files import read_table
    from bert_jax.recipes import load_recipe

    columns, args.targets = args.targets or [], None  # else --target is taken for LoRA's below
    allowed = {*_ARGUMENTS, "model", "epochs"}
    others = [f"--{name.replace('_', '-')}" for name in given if name not in allowed]
    others += few_shot_flags(args) + method_flags(args)
    if others := others + ["--contamination"] * (args.contamination is not None):
        raise ConfigError(f"{others[0]} is not an option of {TEXT_TO_TEXT}")
    for name in ("model", "train", "dev", "source"):
        if getattr(args, name) is None:
            raise ConfigError(f"{TEXT_TO_TEXT} needs --{name}")
    if len(columns) != 1:
        found = f"found {len(columns)}: {', '.join(columns)}" if columns else "found no --target"
        raise ConfigError(
            f"{TEXT_TO_TEXT} needs one column after --target, the one that the decoder learns to "
            f"write, as in {_EXAMPLE}; {found}"
        )
    settings = {_ARGUMENTS[name]: value for name, value in given.items() if name in _ARGUMENTS}
    batch_size = settings.setdefault("batch_size", 32)
    num_examples = len(read_table(args.train, args.encoding).rows)
    steps = max(1, round(given.get("epochs", 3) * num_examples / batch_size))
    experiment = load_recipe("text_to_text")(
        model=args.model,
        **{name: getattr(args, name) for name in ("train", "dev", "test", "source")},
        target=columns[0],
        steps=steps,
        **settings,
    )
    return override(experiment, args.overrides)
