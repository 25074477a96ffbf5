"""Runs `bert-jax setfit`: trains a classifier from a few labeled texts with a sentence encoder."""

import argparse
from pathlib import Path

from bert_jax.cli.arguments.task import add_task_arguments, task_config
from bert_jax.config.labeled_data import Columns, Glue, Snli
from bert_jax.errors import ConfigError

HELP = "train a classifier from a few labeled texts with a sentence encoder (SetFit)"

_EPILOG = """examples:
  bert-jax setfit columns --train train.csv --dev dev.csv --text review --label sentiment \\
      --model all-MiniLM-L6-v2 --run runs/reviews
  bert-jax setfit columns --train train.csv --text review --label sentiment --num-iterations 20 \\
      --model all-MiniLM-L6-v2 --run runs/reviews

SetFit (Tunstall et al. 2022) brings texts of a class together and moves the classes apart, then
fits a logistic regression to the vectors. The paper uses 8 to 64 texts of each class. The number
of pairs grows with the square of the number of texts, unless --num-iterations limits it; with more
labels, compare it with `bert-jax finetune`. Both texts of a pair are joined with a space.

--model is a sentence encoder: a folder of sentence-transformers or a run of `bert-jax embed-train`.
Of other models, the mean over all tokens is the vector of a text.

`bert-jax predict` and `evaluate` read the run folder; evaluation.json has the metrics of the
labeled splits. The same command resumes a run that was stopped. Exit codes: 0 done, 1 failure, 2
usage, 75 stopped by SIGTERM or Ctrl-C after saving a checkpoint.
"""

_SETTINGS = ("epochs", "batch_size", "learning_rate", "max_length", "seed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds TASK with its flags, --model, --run and the hyperparameters."""
    add_task_arguments(parser)
    parser.add_argument(
        "--model", required=True, help="sentence encoder to start from: a folder or a run"
    )
    parser.add_argument(
        "--run", metavar="FOLDER", required=True, help="run folder; resumed if it exists"
    )
    numbers = (
        ("--num-iterations", int, "N", "N pairs of the same class and N pairs of different classes "
         "for each text (default: all pairs, those of the rarer kind repeated)"),
        ("--epochs", float, "N", "epochs over the pairs (default: 1)"),
        ("--batch-size", int, "N", "pairs of a batch (default: 16)"),
        ("--learning-rate", float, "RATE", "peak learning rate (default: 2e-5)"),
        ("--max-length", int, "TOKENS", "length of a text (default: that of the model, or 128)"),
        ("--seed", int, "N", "random seed (default: 0)"),
    )  # fmt: skip
    for flag, convert, metavar, text in numbers:
        parser.add_argument(flag, type=convert, metavar=metavar, help=text)
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> int:
    """Trains encoder and head; returns the exit code of the run."""
    task = task_config(args)
    if not isinstance(task, Glue | Snli | Columns):
        raise ConfigError(
            f"SetFit is for classification, but the task is {args.task}; expected glue/NAME, snli "
            "or columns"
        )
    from bert_jax.config.sentence_embeddings import ContrastivePairs
    from bert_jax.train.setfit import SetFitConfig, train_setfit

    given = {name: value for name in _SETTINGS if (value := getattr(args, name)) is not None}
    pairs = ContrastivePairs(
        task=task, num_iterations=args.num_iterations, seed=given.get("seed", SetFitConfig.seed)
    )
    return train_setfit(SetFitConfig(pairs=pairs, model=args.model, **given), Path(args.run))
