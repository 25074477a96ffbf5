"""`bert-jax forgetting`: what an encoder lost of its own text when it was adapted."""

import argparse
import json
from pathlib import Path

HELP = "masked-LM loss on text in general, before and after fine-tuning"

_EPILOG = """example:
  bert-jax forgetting exported runs/rte --prepared prepared/heldout

One JSON line: losses (nats) and accuracies of both encoders at the same masked positions, read by
the head of the first, and how far each parameter has moved, relative to its norm.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """BEFORE, AFTER, --prepared, --texts."""
    parser.add_argument("before", metavar="BEFORE", help="the model as it was pretrained")
    parser.add_argument("after", metavar="AFTER", help="the same, fine-tuned: a run or an export")
    parser.add_argument(
        "--prepared", metavar="FOLDER", required=True, help="text in general, by bert-jax prepare"
    )
    parser.add_argument("--texts", type=int, default=512, metavar="N", help="default: 512")
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Prints the line."""
    from bert_jax.pretrained.load import load_model
    from bert_jax.tuning.fisher import measure_forgetting

    before, after = load_model(args.before), load_model(args.after)
    print(
        json.dumps(measure_forgetting(before, after, Path(args.prepared), num_examples=args.texts))
    )
