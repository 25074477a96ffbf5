"""`bert-jax finetune`: a pretrained encoder and labelled examples -> a model for the task."""

import argparse
from pathlib import Path
from typing import Any

from bert_jax.cli.arguments.recipe import (
    add_checkpoints_argument,
    add_override_arguments,
    experiment_from_recipe,
)
from bert_jax.cli.arguments.task import add_task_arguments, task_command, task_config
from bert_jax.config_lib import override
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment

HELP = "fine-tune an encoder on a task of GLUE, SQuAD, CoNLL or on your own labelled files"

_EPILOG = """examples:
  bert-jax finetune columns --train train.csv --dev dev.csv --text review --label sentiment \\
      --model exported --run runs/reviews
  bert-jax finetune glue/rte --glue-dir glue_data --model exported --run runs/rte --epochs 3
  bert-jax finetune configs/finetune/multi_task.py --run runs/four \\
      --with model=exported glue_dir=glue_data conll=conll2003

The run folder then holds the checkpoint that was best on dev, predictions/dev.jsonl and test.jsonl,
evaluation.json and report.html; `bert-jax export runs/rte --output rte` makes a Hugging Face folder
of it. Started again with the same arguments it goes on where it stopped. Exit codes: 0 done,
1 failure, 2 usage, 75 stopped by SIGTERM or Ctrl-C with everything saved.

In place of TASK and its flags a recipe, a file that ends in .py, can say all of it; the one above
trains one encoder on several tasks, with a head for each.
"""

_SETTINGS = ("model", "epochs", "batch_size", "learning_rate", "max_length", "seed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The task's, --model, --run, the usual hyperparameters, --set for all others, --with."""
    add_task_arguments(parser)
    parser.add_argument(
        "--model",
        help="what to start from: a run folder, a Hugging Face folder or a Google TF1 checkpoint",
    )
    parser.add_argument("--run", metavar="FOLDER", required=True, help="the run folder")
    add_checkpoints_argument(parser)
    parser.add_argument("--epochs", type=float, help="default: 3")
    parser.add_argument("--batch-size", type=int, metavar="ROWS", help="default: 32")
    parser.add_argument("--learning-rate", type=float, metavar="RATE", help="peak; default: 5e-5")
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="PIECES",
        help="of rows (default: 128, and 384 for questions, or what the model can read)",
    )
    parser.add_argument("--seed", type=int, help="default: 0")
    parser.add_argument(
        "--frozen-encoder",
        action="store_true",
        help="train the head alone, on states that the encoder computes once: epochs of seconds, "
        "at a lower quality; try --learning-rate 1e-3 and more epochs",
    )
    add_override_arguments(parser)
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> int:
    """Returns the exit code of the run."""
    experiment = (
        _experiment_from_recipe(args) if args.task.endswith(".py") else _experiment_from_flags(args)
    )
    from bert_jax.distributed.processes import config_from_environment, initialize

    initialize(config_from_environment())
    from bert_jax.train.run import run as train

    return train(experiment, Path(args.run), args.checkpoints)


def _experiment_from_recipe(args: argparse.Namespace) -> Experiment:
    flags = [f"--{name.replace('_', '-')}" for name in _given_settings(args)] + task_command(args)[
        1:
    ]
    flags += ["--frozen-encoder"] if args.frozen_encoder else []
    if flags:
        raise ConfigError(
            f"{flags[0]} does not go with a recipe; give the recipe's arguments by --with "
            "NAME=VALUE, and fields of its config by --set"
        )
    return experiment_from_recipe(args.task, args)


def _experiment_from_flags(args: argparse.Namespace) -> Experiment:
    from bert_jax.train.presets import fine_tuning_experiment
    from bert_jax.tuning.config import FROZEN_ENCODER, TuningConfig

    config, given = task_config(args), _given_settings(args)
    if args.arguments:
        raise ConfigError(f"--with goes with a recipe, which ends in .py, not with {args.task}")
    if "model" not in given:
        raise ConfigError(f"{args.task} needs --model, what to start from")
    tuning = FROZEN_ENCODER if args.frozen_encoder else TuningConfig()
    experiment = fine_tuning_experiment(config, **given, tuning=tuning)
    return override(experiment, args.overrides)


def _given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given; the others have the defaults of `fine_tuning`."""
    return {name: value for name in _SETTINGS if (value := getattr(args, name)) is not None}
