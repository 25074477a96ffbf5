"""Runs `bert-jax baselines`: computes n-gram losses on the held-out positions of a run."""

import argparse
import json
from pathlib import Path

HELP = "compare the held-out masked-LM loss of a run with n-gram models"

_EPILOG = """example:
  bert-jax baselines runs/tiny

Fits a unigram and an interpolated bigram model on the corpus that the run was trained on, and
evaluates them at the masked positions of the run's held-out evaluation. Prints one JSON line;
losses are in nats per masked token.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds RUN."""
    parser.add_argument(
        "run_folder", metavar="RUN", help="run folder of a run with a held-out corpus"
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Prints the losses as one JSON line."""
    from bert_jax.apps.studies.ngram_comparison import compare_with_ngrams

    print(json.dumps(compare_with_ngrams(Path(args.run_folder))))
