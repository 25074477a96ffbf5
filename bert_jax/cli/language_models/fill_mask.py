"""Runs `bert-jax fill-mask`: prints the most likely tokens at each mask, as JSON lines."""

import argparse
import json

from bert_jax.cli.arguments.prediction import MODEL_WITHOUT_HEAD, add_model_argument
from bert_jax.cli.arguments.text_inputs import add_text_arguments, text_groups

HELP = "predict the tokens at the [MASK]s (RoBERTa: <mask>) of texts"

_EPILOG = f"""examples:
  bert-jax fill-mask exported "Paris is the [MASK] of France."
  bert-jax fill-mask runs/tiny --top-k 3 --file questions.txt > answers.jsonl

{MODEL_WITHOUT_HEAD}
Each line of output: {{"text", "masks": [{{"candidates": [{{"token", "id", "probability"}}]}}]}}.
An empty line of a file or of standard input has no masks.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL, the texts and --top-k."""
    add_model_argument(parser)
    add_text_arguments(parser)
    parser.add_argument(
        "--top-k", type=int, default=5, metavar="K", help="candidates for each mask (default: 5)"
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Prints one JSON line for each text, in order."""
    from bert_jax.predict.fill_mask import FillMask
    from bert_jax.pretrained.load import load_model

    fill = FillMask(load_model(args.model), top_k=args.top_k)
    for text_batch in text_groups(args):
        for prediction in fill(text_batch):
            print(json.dumps(prediction, ensure_ascii=False), flush=True)
