"""Defines `bert-jax quickstart`: from documentation on this machine to a fine-tuned BERT."""

import argparse
from pathlib import Path

HELP = "train, export, and fine-tune a tiny BERT on Python documentation of this machine"

_EPILOG = """example:
  bert-jax quickstart --output quickstart

Gathers and curates the docstrings of Python and of the installed packages, trains a tokenizer,
prepares the text, pretrains a tiny BERT, evaluates it on held-out packages, exports it, fills a few
masks, and fine-tunes it for two classification tasks. The same command resumes after a stop.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --output, --recipe, --steps, and --seed."""
    parser.add_argument("--output", metavar="FOLDER", required=True, help="folder of all outputs")
    parser.add_argument(
        "--recipe",
        default="configs/quickstart.py",
        help="pretraining recipe (default: configs/quickstart.py)",
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="number of training steps (default: the recipe's)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all training (default: 0)")
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> int:
    """Runs the stages that are not finished; returns the exit code."""
    from bert_jax.apps.quickstart.stages import run_stages

    return run_stages(Path(args.output), recipe=args.recipe, steps=args.steps, seed=args.seed)
