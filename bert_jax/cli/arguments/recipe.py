"""Defines the arguments of verbs that read a recipe: CONFIG, --arg and --set."""

import argparse

from bert_jax.config_lib import override
from bert_jax.experiment import Experiment, check_experiment
from bert_jax.recipes import call_recipe, load_recipe


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds CONFIG, --arg and --set."""
    parser.add_argument(
        "config",
        metavar="CONFIG",
        help="recipe: a name that `bert-jax recipes` lists, or a Python file",
    )
    add_override_arguments(parser)


def add_override_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --arg and --set."""
    parser.add_argument(
        "--arg",
        dest="arguments",
        metavar="NAME=VALUE",
        nargs="+",
        default=[],
        help="arguments of get_config in the recipe",
    )
    add_set_argument(parser)


def add_set_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --set."""
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="FIELD=VALUE",
        nargs="+",
        default=[],
        help="fields of the config, as in train.schedule.peak_learning_rate=2e-4",
    )


def add_checkpoints_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --checkpoints."""
    parser.add_argument(
        "--checkpoints",
        metavar="URL",
        help="folder of the checkpoints, as in gs://bucket/run/checkpoints (default: in the run "
        "folder); the run folder records it",
    )


def load_experiment(args: argparse.Namespace) -> Experiment:
    """Returns the config that the arguments describe."""
    return experiment_from_recipe(args.config, args)


def experiment_from_recipe(recipe: str, args: argparse.Namespace) -> Experiment:
    """Returns the config that a recipe builds with --arg and --set.

    Raises:
      ConfigError: a name is unknown (the nearest is given), or a value is invalid.
    """
    result = call_recipe(load_recipe(recipe), args.arguments, recipe)
    return override(check_experiment(result, recipe), args.overrides)
