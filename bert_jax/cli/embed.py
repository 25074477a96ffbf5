"""`bert-jax embed`: texts as vectors, as JSON lines."""

import argparse
import json

from bert_jax.cli.arguments.text_inputs import add_text_arguments, text_groups

HELP = "turn texts into vectors"

_EPILOG = """example:
  bert-jax embed exported "A text." "Another text."
  bert-jax embed runs/tiny --pooling cls --layers=-4,-3,-2,-1 --file texts.txt > vectors.jsonl

MODEL is an export, a run folder, one of its checkpoints, or another Hugging Face BERT folder.
Each answer is one line: {"text": ..., "truncated": false, "embedding": [...]}.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, the texts, --pooling, --layers."""
    parser.add_argument("model", metavar="MODEL", help="an export or a run folder")
    add_text_arguments(parser)
    parser.add_argument(
        "--pooling",
        choices=("cls", "mean", "max"),
        default="mean",
        help="state of [CLS], or mean or maximum over all tokens (default: mean)",
    )
    parser.add_argument(
        "--layers",
        type=_parse_layers,
        default=(-1,),
        metavar="N,N",
        help="layers whose vectors are set one after another: 0 embeddings, 1 first layer, -1 last "
        "(default); write --layers=-2,-1 with the equals sign",
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Prints one JSON line for each text, in their order."""
    from bert_jax.predict.embedder import Embedder
    from bert_jax.pretrained.load import load_model

    embed = Embedder(load_model(args.model), pooling=args.pooling, layers=args.layers)
    for text_batch in text_groups(args):
        for text, (vector, truncated) in zip(text_batch, embed(text_batch), strict=True):
            record = {"text": text, "truncated": truncated, "embedding": vector.tolist()}
            print(json.dumps(record, ensure_ascii=False), flush=True)


def _parse_layers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
