"""Runs `bert-jax embed-evaluate`: prints how good the vectors of a model are on labeled tasks."""

import argparse
from pathlib import Path

from bert_jax.cli.arguments.prediction import add_model_argument
from bert_jax.cli.arguments.sentence_encoder import (
    add_dimensions_argument,
    add_normalize_argument,
    add_pooling_argument,
)
from bert_jax.config.labeled_data import GLUE_NAMES, Columns, Glue
from bert_jax.errors import ConfigError

HELP = "evaluate embeddings on similarity, pairs and classification"

_EPILOG = """examples:
  bert-jax embed-evaluate all-MiniLM-L6-v2 --glue GLUE --task stsb mrpc sst2
  bert-jax embed-evaluate runs/vectors --file pairs.csv --text a --text-pair b --label score
  bert-jax embed-evaluate exported --train train.csv --file test.csv --text review --label topic

The form of a task decides what is computed:
  pairs with scores        Spearman's and Pearson's correlation of similarity and score, over all
                           pairs
  pairs with two labels    average precision, and accuracy and F1 with the best threshold; the pairs
                           that belong together are those of the second label of a GLUE task, or of
                           a file in alphabetical order
  texts with labels        accuracy and macro F1 of logistic regression on the vectors of --train

`bert-jax search evaluate` evaluates retrieval.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL, the data, the flags of pooling and --output."""
    add_model_argument(parser)
    parser.add_argument("--glue", metavar="FOLDER", help="folder with STS-B/dev.tsv and so on")
    parser.add_argument(
        "--task",
        nargs="+",
        choices=GLUE_NAMES,
        default=["stsb"],
        metavar="NAME",
        help=f"GLUE tasks to evaluate, on their dev sets: {', '.join(GLUE_NAMES)} (default: stsb)",
    )
    parser.add_argument(
        "--file", metavar="FILE", help="CSV, TSV, JSON lines or Parquet file, in place of --glue"
    )
    parser.add_argument(
        "--train", metavar="FILE", help="labeled texts on which logistic regression is trained"
    )
    parser.add_argument("--text", metavar="COLUMN", help="column of the text")
    parser.add_argument("--text-pair", metavar="COLUMN", help="column of the second text of a pair")
    parser.add_argument("--label", metavar="COLUMN", help="column of the label or score")
    add_pooling_argument(parser)
    add_normalize_argument(parser)
    add_dimensions_argument(parser)
    parser.add_argument("--output", metavar="FILE", help="JSON file for the results")
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Prints a line for each task, and writes --output."""
    from bert_jax.data.finetuning.readers.load_task import load_task
    from bert_jax.io.atomic_io import check_writable, write_json
    from bert_jax.predict.embedder import Embedder
    from bert_jax.predict.evaluate_embeddings import evaluate_embeddings
    from bert_jax.pretrained.load import load_model

    if args.output is not None:
        check_writable(Path(args.output))
    tasks = [load_task(config) for config in _task_configs(args)]
    embed = Embedder(
        load_model(args.model),
        pooling=args.pooling,
        normalize=args.normalize,
        dimensions=args.dimensions,
    )
    results = {}
    for task in tasks:
        scores = evaluate_embeddings(embed, task)
        results[task.name] = scores._asdict()
        values = "  ".join(f"{name} {value:.4f}" for name, value in scores.metrics.items())
        evaluation = scores.evaluation.replace("_", " ")
        print(f"{task.name}: {evaluation}, {scores.num_examples:,} examples: {values}", flush=True)
    if args.output is not None:
        write_json(Path(args.output), {"model": args.model, "results": results})


def _task_configs(args: argparse.Namespace) -> list[Glue | Columns]:
    if (args.glue is None) == (args.file is None):
        raise ConfigError("expected either --glue FOLDER, or --file FILE with --text and --label")
    if args.glue is not None:
        return [Glue(task=name, folder=args.glue) for name in args.task]
    if args.text is None or args.label is None:
        raise ConfigError("--file needs --text and --label, the columns of the text and its label")
    return [
        Columns(
            train=args.train,
            dev=args.file,
            text=args.text,
            text_pair=args.text_pair,
            label=args.label,
        )
    ]
