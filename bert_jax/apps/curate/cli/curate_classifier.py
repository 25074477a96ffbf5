"""Runs `bert-jax curate-classifier`: trains a quality classifier for the rules of curation."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bert_jax.config.flags import REQUIRED, flag
from bert_jax.text.files import DocumentUnit

HELP = "train a quality classifier from good and raw documents, for a rule of `curate`"

EPILOG = """example: documents that look like the books rather than like the crawl
  bert-jax curate-classifier --positive 'books/*.txt' --negative 'crawl/*.jsonl.gz' \\
      --output quality.safetensors

A recipe then has Rule(signal=QualityScore(model="quality.safetensors"), at_least=0.5). The model
learns whatever distinguishes the two sets, their topics too: look at examples of what it drops in
curation.html.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the two sets of documents, the model file, and the settings of training."""

    positive: tuple[str, ...] = flag("FILES", "documents worth training on: patterns", REQUIRED)
    negative: tuple[str, ...] = flag("FILES", "raw documents: patterns", REQUIRED)
    document_unit: DocumentUnit = flag("", "what a document is in a text file", "blank-line")
    output: Path = flag("FILE", "model file", REQUIRED)
    epochs: int = flag("N", "passes over the documents", 5)
    seed: int = flag("N", "order", 0)


def run(args: Arguments) -> None:
    """Trains, writes the model, and prints its results on held-out documents."""
    from bert_jax.apps.curate.classifier import ClassifierTraining, train_classifier
    from bert_jax.data.corpus.sources import TextFiles
    from bert_jax.text.cleaning import normalize_text

    config = ClassifierTraining(epochs=args.epochs, seed=args.seed)

    def texts(patterns: tuple[str, ...]) -> Iterator[str]:
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
