"""Runs `bert-jax curate-ngrams`: trains an n-gram model, whose perplexity rules of curation use."""

import argparse
from pathlib import Path

HELP = "train an n-gram model of a reference corpus, for perplexity rules of `curate`"

_EPILOG = """example: drop documents that are more surprising than 99 % of such books
  bert-jax curate-ngrams --reference 'books/*.txt' --output books.safetensors

A recipe then has Rule(signal=PerplexityPercentile(model="books.safetensors"), at_most=99), or
Perplexity with a limit from the table that is printed.
"""
_SHOWN_PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --reference, --document-unit, --order and --output."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "--reference",
        nargs="+",
        required=True,
        metavar="FILES",
        help="files or glob patterns of the reference text",
    )
    parser.add_argument(
        "--document-unit",
        choices=("file", "blank-line", "line"),
        default="blank-line",
        help="what a document is in a text file (default: blank-line)",
    )
    parser.add_argument(
        "--order", type=int, default=3, metavar="N", help="words in an n-gram (default: 3)"
    )
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="model file")


def run(args: argparse.Namespace) -> None:
    """Trains, writes the model, and prints the perplexity of held-out documents."""
    from bert_jax.apps.curate.ngrams import train_ngrams
    from bert_jax.data.corpus.sources import TextFiles
    from bert_jax.text.cleaning import normalize_text

    source = TextFiles(args.reference, document_unit=args.document_unit)
    model = train_ngrams(map(normalize_text, source.read_texts(source.list_files())), args.order)
    model.save(args.output)
    sizes = ", ".join(f"{len(level.keys):,}" for level in model.levels)
    print(
        f"{args.output}: {model.info['words']:,} words of {model.info['documents']:,} documents; "
        f"{sizes} n-grams of 1 to {args.order} words"
    )
    print(
        f"perplexity of {model.info['held_out_documents']:,} other documents: "
        + ", ".join(f"{p} %: {model.info['percentiles'][p]:,.1f}" for p in _SHOWN_PERCENTILES)
    )
