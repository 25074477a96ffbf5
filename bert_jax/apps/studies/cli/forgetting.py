"""Runs `bert-jax forgetting`: compares masked-LM losses before and after fine-tuning."""

import argparse
import json
from pathlib import Path

HELP = "measure the masked-LM loss on general text before and after fine-tuning"

_EPILOG = """example:
  bert-jax forgetting exported runs/rte --corpus prepared/heldout

Prints one JSON line: losses (nats) and accuracies of both encoders at the same masked positions,
both with the masked-LM head of BEFORE, and the change of each parameter relative to its norm.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds BEFORE, AFTER, --corpus and --num-examples."""
    parser.add_argument(
        "before", metavar="BEFORE", help="pretrained model: a run folder or an export"
    )
    parser.add_argument(
        "after", metavar="AFTER", help="the same model, fine-tuned: a run folder or an export"
    )
    parser.add_argument(
        "--corpus",
        metavar="FOLDER",
        required=True,
        help="general text, prepared with `bert-jax prepare`",
    )
    parser.add_argument(
        "--num-examples",
        type=int,
        default=512,
        metavar="N",
        help="sequences of the corpus to use (default: 512)",
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Prints losses, accuracies and parameter changes as one JSON line."""
    from bert_jax.apps.studies.forgetting import measure_forgetting
    from bert_jax.pretrained.load import load_model

    before, after = load_model(args.before), load_model(args.after)
    print(
        json.dumps(
            measure_forgetting(before, after, Path(args.corpus), num_examples=args.num_examples)
        )
    )
