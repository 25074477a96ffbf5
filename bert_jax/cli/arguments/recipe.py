"""Defines the arguments of verbs that read a recipe: CONFIG, --arg, --corpora and --set."""

import argparse
import dataclasses

from bert_jax.config.config_lib import override
from bert_jax.config.data import CorpusMixture, PretrainingData, WeightedCorpus
from bert_jax.config.experiment import Experiment, check_experiment
from bert_jax.config.recipes import call_recipe, load_recipe
from bert_jax.errors import ConfigError


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds CONFIG, --arg and --set."""
    parser.add_argument(
        "config",
        metavar="CONFIG",
        help="recipe: a name that `bert-jax recipes` lists, or a Python file",
    )
    add_override_arguments(parser)


def add_corpora_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --corpora."""
    parser.add_argument(
        "--corpora",
        metavar="FOLDER[=WEIGHT]",
        nargs="+",
        default=[],
        help="prepared corpora to mix, with their fractions of the training tokens, instead of "
        "--arg corpus=FOLDER; without weights, in proportion to their tokens",
    )


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
    corpora = getattr(args, "corpora", [])
    return experiment_from_recipe(args.config, args, parse_mixture(corpora) if corpora else None)


def experiment_from_recipe(
    recipe: str, args: argparse.Namespace, mixture: CorpusMixture | None = None
) -> Experiment:
    """Returns the config that a recipe builds with --arg, --corpora and --set.

    Args:
      mixture: the corpora of the config; None: the one that the recipe names.

    Raises:
      ConfigError: a name is unknown (the nearest is given), or a value is invalid.
    """
    arguments = list(args.arguments)
    if mixture is not None:
        if any(each.startswith("corpus=") for each in arguments):
            raise ConfigError("--corpora and --arg corpus=... are both given, expected one of them")
        arguments.append(f"corpus={mixture.corpora[0].folder}")  # has the tokenizer of all
    experiment = check_experiment(call_recipe(load_recipe(recipe), arguments, recipe), recipe)
    if mixture is not None:
        if not isinstance(experiment.data, PretrainingData):
            raise ConfigError(
                f"--corpora: the data of {recipe} is {type(experiment.data).__name__}, expected "
                "PretrainingData"
            )
        data = dataclasses.replace(experiment.data, corpus=mixture)
        experiment = dataclasses.replace(experiment, data=data)
    return override(experiment, args.overrides)


def parse_mixture(words: list[str]) -> CorpusMixture:
    """Parses "FOLDER" and "FOLDER=WEIGHT".

    Raises:
      ConfigError: a weight is not a positive number, or a folder occurs twice.
    """
    corpora: list[WeightedCorpus] = []
    for word in words:
        folder, separator, text = word.rpartition("=")
        if not separator:
            corpora.append(WeightedCorpus(folder=word))
            continue
        try:
            corpora.append(WeightedCorpus(folder=folder, weight=float(text)))
        except ValueError:
            raise ConfigError(
                f"--corpora {word}: the weight is {text!r}, expected a number, as in books=0.3"
            ) from None
    return CorpusMixture(corpora=tuple(corpora))
