"""Runs `bert-jax curate-classifier`: trains a quality classifier for the rules of curation."""

import argparse
from collections.abc import Iterator
from pathlib import Path

HELP = "train a quality classifier from good and raw documents, for a rule of `curate`"

_EPILOG = """example: documents that look like the books rather than like the crawl
  bert-jax curate-classifier --positive 'books/*.txt' --negative 'crawl/*.jsonl.gz' \\
      --output quality.safetensors

A recipe then has Rule(signal=QualityScore(model="quality.safetensors"), at_least=0.5). The model
learns whatever distinguishes the two sets, their topics too: look at examples of what it drops in
curation.html.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --positive, --negative, --document-unit, --output and the settings of training."""
    parser.epilog = _EPILOG
    for name, text in (("positive", "documents worth training on"), ("negative", "raw documents")):
        parser.add_argument(
            f"--{name}", nargs="+", required=True, metavar="FILES", help=f"{text}: patterns"
        )
    parser.add_argument(
        "--document-unit",
        choices=("file", "blank-line", "line"),
        default="blank-line",
        help="what a document is in a text file (default: blank-line)",
    )
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="model file")
    parser.add_argument(
        "--epochs", type=int, default=5, metavar="N", help="passes over the documents (default: 5)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="order (default: 0)")


def run(args: argparse.Namespace) -> None:
    """Trains, writes the model, and prints its results on held-out documents."""
    from bert_jax.apps.curate.classifier import ClassifierTraining, train_classifier
    from bert_jax.data.corpus.sources import TextFiles
    from bert_jax.text.cleaning import normalize_text

    config = ClassifierTraining(epochs=args.epochs, seed=args.seed)

    def texts(patterns: list[str]) -> Iterator[str]:
        source = TextFiles(patterns, document_unit=args.document_unit)
        return map(normalize_text, source.read_texts(source.list_files()))

    model, evaluation = train_classifier(texts(args.positive), texts(args.negative), config)
    model.save(args.output)
    print(
        f"{args.output}: on {evaluation.num_positives:,} positive and "
        f"{evaluation.num_negatives:,} negative documents that it was not trained on, AUC "
        f"{evaluation.auc:.4f}"
    )
    print("documents  mean score  positive")
    for count, score, fraction in evaluation.calibration:
        print(f"{count:9,}  {score:10.3f}  {fraction:8.1%}")
