"""Runs `bert-jax word-vectors classify`: frozen word vectors as features of a task."""

from dataclasses import dataclass
from pathlib import Path

from bert_jax.config.flags import REQUIRED, flag, positional

HELP = "classify texts by logistic regression on frozen word vectors, ELMo or an encoder"

EPILOG = """examples:
  bert-jax word-vectors classify glove.txt --train train.tsv --dev dev.tsv --text sentence \\
      --label label
  bert-jax word-vectors classify elmo --train train.csv --dev dev.csv --text text --label topic

The features of a text are the mean of the vectors of its words, of each layer; with several layers
also their scalar mix, whose weights and gamma are trained with the classifier (Peters et al. 2018).
MODEL is a file of word vectors, a folder of ELMo, or an encoder; tf-idf for the TF-IDF of words and
pairs of words instead, or majority for the most frequent label.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the model, the tables and their columns."""

    model: str = positional(
        "MODEL", "file of word vectors, folder of ELMo, encoder, tf-idf or majority"
    )
    train: str = flag(
        "FILE", "table of training examples (CSV, TSV, JSON lines, Parquet)", REQUIRED
    )
    dev: str = flag("FILE", "table of examples that are classified", REQUIRED)
    text: str = flag("COLUMN", "column of the text", REQUIRED)
    label: str = flag("COLUMN", "column of the label", REQUIRED)
    output: str | None = flag("FILE", "JSON file with the accuracies")


def run(args: Arguments) -> None:
    """Prints the accuracy of each layer."""
    from bert_jax.apps.word_vectors.frozen_features import (
        classify_frozen,
        classify_without_model,
        read_labeled_texts,
    )
    from bert_jax.apps.word_vectors.word_encoder import load_word_encoder
    from bert_jax.io.atomic_io import check_writable, write_json

    check_writable(args.output)
    train, dev = (read_labeled_texts(f, args.text, args.label) for f in (args.train, args.dev))
    if args.model == "tf-idf" or args.model == "majority":
        correct = classify_without_model(args.model, train, dev)
    else:
        correct = classify_frozen(load_word_encoder(args.model), train, dev)
    accuracy = {name: sum(values) / len(values) for name, values in correct.items()}
    for name, value in accuracy.items():
        print(f"{name:20} accuracy {100 * value:5.1f} of {len(dev.texts):,} texts", flush=True)
    if args.output is not None:
        results = {"model": args.model, "accuracy": accuracy, "correct": correct}
        write_json(Path(args.output), results)
