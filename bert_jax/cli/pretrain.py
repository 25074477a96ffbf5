"""Runs `bert-jax pretrain`: trains a recipe in a run folder, or resumes the run found there."""

import argparse
import dataclasses
from pathlib import Path

from bert_jax.cli.arguments.recipe import (
    add_checkpoints_argument,
    add_corpora_argument,
    add_recipe_arguments,
    load_experiment,
)

HELP = "pretrain an encoder, or resume from the newest checkpoint of the run folder"

_EPILOG = """example:
  bert-jax pretrain bert --run runs/tiny \\
      --arg size=tiny corpus=data/train heldout=data/heldout steps=10000 \\
      --set train.logging.tensorboard=true
  bert-jax pretrain bert --run runs/mixed --corpora data/wiki=0.7 data/books=0.3 \\
      --arg size=tiny steps=10000 --set data.corpus.corpora.1.max_epochs=4

The same command resumes a run that was stopped. Exit codes: 0 done, 1 failure, 2 usage, 75 stopped
by SIGTERM or Ctrl-C after saving a checkpoint.

To train with several processes, start each with the same command and set
BERT_JAX_COORDINATOR=HOST:PORT, BERT_JAX_NUM_PROCESSES=N and BERT_JAX_PROCESS_ID=0..N-1; on a TPU
pod set only BERT_JAX_COORDINATOR=auto.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds CONFIG, --arg, --set, --corpora, --run, --checkpoints and --init-from."""
    add_recipe_arguments(parser)
    add_corpora_argument(parser)
    parser.add_argument(
        "--run", metavar="FOLDER", required=True, help="run folder; resumed if it exists"
    )
    add_checkpoints_argument(parser)
    parser.add_argument(
        "--init-from",
        metavar="MODEL",
        help="initial weights: a run folder, a Hugging Face folder or a Google TF1 checkpoint",
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> int:
    """Trains and returns the exit code of the run."""
    experiment = load_experiment(args)
    if args.init_from:
        experiment = dataclasses.replace(experiment, init_from=args.init_from)
    from bert_jax.parallel.processes import config_from_environment, initialize

    initialize(config_from_environment())
    from bert_jax.train.run import run as train

    return train(experiment, Path(args.run), args.checkpoints)
