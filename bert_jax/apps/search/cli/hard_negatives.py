"""Runs `bert-jax search mine`: writes triples of pairs and their hard negatives."""

import argparse
import json
from pathlib import Path

from bert_jax.cli.arguments.prediction import add_model_argument
from bert_jax.cli.arguments.sentence_encoder import add_pooling_argument

HELP = "find hard negatives for pairs of a query and a relevant text"

_EPILOG = """examples:
  bert-jax search mine exported pairs.jsonl --output triples.jsonl
  bert-jax search mine exported pairs.csv --query question --positive answer \\
      --corpus passages.txt --relative-margin 0.05 --output triples.jsonl

PAIRS is a .csv, .tsv, .jsonl or .parquet file with the columns "anchor" and "positive". Each line
of the output is {"anchor", "positive", "negative"}, for training sentence encoders. The rules are
those of mine_hard_negatives in sentence-transformers.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL, PAIRS, --output, the columns, --corpus and what chooses the negatives."""
    add_model_argument(parser)
    parser.add_argument("pairs", metavar="PAIRS", help="file with queries and relevant texts")
    parser.add_argument("--output", metavar="FILE", required=True, help="JSONL file of the triples")
    parser.add_argument(
        "--query", metavar="COLUMN", default="anchor", help="column of queries (default: anchor)"
    )
    parser.add_argument(
        "--positive",
        metavar="COLUMN",
        default="positive",
        help="column of relevant texts (default: positive)",
    )
    parser.add_argument(
        "--corpus",
        metavar="FILE",
        nargs="+",
        default=[],
        help="files of texts that may be negatives, besides the positives of other queries",
    )
    group = parser.add_argument_group("choice of negatives")
    for flag, default, text in (
        ("--num-negatives", 3, "negatives for each pair (default: 3)"),
        ("--range-min", 0, "nearest texts that are left out (default: 0)"),
        ("--range-max", None, "nearest texts that are considered (default: enough of them)"),
    ):
        group.add_argument(flag, type=int, metavar="N", default=default, help=text)
    for flag, text in (
        ("--absolute-margin", "smallest difference of the scores of positive and negative"),
        ("--relative-margin", "the same as a fraction of the positive's score"),
        ("--max-score", "largest score of a negative"),
        ("--min-score", "smallest score of a negative"),
    ):
        group.add_argument(flag, type=float, metavar="X", help=text)
    group.add_argument(
        "--sampling",
        choices=("top", "random"),
        default="top",
        help="the nearest of the remaining texts, or a random sample (default: top)",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the sample")
    add_pooling_argument(parser)
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Writes the triples and prints their number."""
    from bert_jax.apps.search.documents import read_collection
    from bert_jax.apps.search.encoder import EmbedderEncoder
    from bert_jax.apps.search.mining import HardNegatives, find_hard_negatives
    from bert_jax.data.finetuning.readers.columns import cell_text, require_columns
    from bert_jax.data.finetuning.readers.tabular_files import read_table
    from bert_jax.io.atomic_io import atomic_write, check_writable
    from bert_jax.pretrained.load import load_model

    check_writable(Path(args.output))
    config = HardNegatives(
        num_negatives=args.num_negatives,
        range_min=args.range_min,
        range_max=args.range_max,
        absolute_margin=args.absolute_margin,
        relative_margin=args.relative_margin,
        max_score=args.max_score,
        min_score=args.min_score,
        sampling=args.sampling,
        seed=args.seed,
    )
    table = read_table(args.pairs)
    require_columns(table, args.pairs, [args.query, args.positive])
    pairs = [
        (cell_text(row, args.query, "query"), cell_text(row, args.positive, "relevant text"))
        for row in table.rows
    ]
    corpus = [document.text for document in read_collection(args.corpus)] if args.corpus else []
    encoder = EmbedderEncoder(load_model(args.model), pooling=args.pooling)
    triples = find_hard_negatives(pairs, encoder, config, corpus)
    lines = [json.dumps(triple._asdict(), ensure_ascii=False) + "\n" for triple in triples]
    atomic_write(Path(args.output), "".join(lines))
    print(f"{args.output}: {len(triples):,} triples of {len(pairs):,} pairs")
