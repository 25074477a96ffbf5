"""The arguments that verbs reading a recipe share: CONFIG, --with, --set."""

import argparse

from bert_jax.config_lib import call_recipe, load_recipe, override
from bert_jax.experiment import Experiment


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds CONFIG, --with and --set."""
    parser.add_argument("config", metavar="CONFIG", help="a recipe, as configs/pretrain/bert.py")
    add_override_arguments(parser)


def add_override_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --with and --set."""
    parser.add_argument(
        "--with",
        dest="arguments",
        metavar="NAME=VALUE",
        nargs="+",
        default=[],
        help="arguments of the recipe's get_config",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="FIELD=VALUE",
        nargs="+",
        default=[],
        help="fields of the resulting config, as train.schedule.peak_learning_rate=2e-4",
    )


def add_checkpoints_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --checkpoints."""
    parser.add_argument(
        "--checkpoints",
        metavar="URL",
        help="keep them there, as in gs://bucket/run/checkpoints, and not in the run folder, which "
        "then says where they are",
    )


def load_experiment(args: argparse.Namespace) -> Experiment:
    """The config that the arguments describe."""
    return experiment_from_recipe(args.config, args)


def experiment_from_recipe(recipe: str, args: argparse.Namespace) -> Experiment:
    """The config that a recipe gives with --with and --set.

    Raises:
      ConfigError: unknown name (the nearest is named), wrong type, impossible value.
    """
    get_config = load_recipe(recipe)
    return override(call_recipe(get_config, args.arguments, recipe), args.overrides)
