"""`bert-jax pretrain`: runs a recipe in a run folder, or goes on with the run that is there."""

import argparse
import dataclasses
from pathlib import Path

from bert_jax.cli.arguments.recipe import (
    add_checkpoints_argument,
    add_recipe_arguments,
    load_experiment,
)

HELP = "pretrain an encoder; goes on from the run folder's newest checkpoint"

_EPILOG = """example:
  bert-jax pretrain configs/pretrain/bert.py --run runs/tiny \\
      --with size=tiny corpus=data/train heldout=data/heldout steps=10000 \\
      --set train.logging.tensorboard=true

Started again with the same arguments it goes on where it stopped. Exit codes: 0 done, 1 failure,
2 usage, 75 stopped by SIGTERM or Ctrl-C with everything saved.

several processes: give each the same command and BERT_JAX_COORDINATOR=HOST:PORT,
BERT_JAX_NUM_PROCESSES=N, BERT_JAX_PROCESS_ID=0..N-1; on a TPU pod BERT_JAX_COORDINATOR=auto.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """CONFIG, --with, --set, --run, --checkpoints, --init-from."""
    add_recipe_arguments(parser)
    parser.add_argument("--run", metavar="FOLDER", required=True, help="the run folder")
    add_checkpoints_argument(parser)
    parser.add_argument(
        "--init-from",
        metavar="MODEL",
        help="start from a run folder, a Hugging Face folder or a Google TF1 checkpoint",
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> int:
    """Returns the exit code of the run."""
    experiment = load_experiment(args)
    if args.init_from:
        experiment = dataclasses.replace(experiment, init_from=args.init_from)
    from bert_jax.distributed.processes import config_from_environment, initialize

    initialize(config_from_environment())
    from bert_jax.train.run import run as train

    return train(experiment, Path(args.run), args.checkpoints)
