"""Runs `bert-jax embed`: prints the embeddings of texts, as JSON lines."""

import argparse
import json

from bert_jax.cli.arguments.prediction import MODEL_WITHOUT_HEAD, add_model_argument
from bert_jax.cli.arguments.text_inputs import add_text_arguments, text_groups

HELP = "compute embeddings of texts"

_EPILOG = f"""examples:
  bert-jax embed exported "A text." "Another text."
  bert-jax embed runs/tiny --pooling cls --layers=-4,-3,-2,-1 --file texts.txt > vectors.jsonl

{MODEL_WITHOUT_HEAD}
Each embedding is one line: {{"text": ..., "truncated": false, "embedding": [...]}}. Line N of the
output belongs to line N of a file or of standard input; the embedding of an empty line is that of
[CLS] and [SEP] alone.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL, the texts, --pooling and --layers."""
    add_model_argument(parser)
    add_text_arguments(parser)
    parser.add_argument(
        "--pooling",
        choices=("cls", "mean", "max"),
        default="mean",
        help="vector of a text: the hidden state of [CLS], or the mean or maximum over all tokens "
        "(default: mean)",
    )
    parser.add_argument(
        "--layers",
        type=_parse_layers,
        default=(-1,),
        metavar="N,N",
        help="layers whose vectors are concatenated: 0 is the embedding layer, 1 the first layer, "
        "-1 the last (default: -1); a negative number needs the equals sign, as in --layers=-2,-1",
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Prints one JSON line for each text, in order."""
    from bert_jax.predict.embedder import Embedder
    from bert_jax.pretrained.load import load_model

    embed = Embedder(load_model(args.model), pooling=args.pooling, layers=args.layers)
    for text_batch in text_groups(args):
        for text, (vector, truncated) in zip(text_batch, embed(text_batch), strict=True):
            record = {"text": text, "truncated": truncated, "embedding": vector.tolist()}
            print(json.dumps(record, ensure_ascii=False), flush=True)


def _parse_layers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
