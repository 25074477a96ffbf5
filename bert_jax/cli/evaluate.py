"""Runs `bert-jax evaluate`: prints the metrics of a fine-tuned model on labeled data, as JSON."""

import argparse
import json
import logging

from bert_jax.cli.arguments.task import TASKS_HELP, add_task_arguments, task_config
from bert_jax.errors import ConfigError

HELP = "compute the metrics of a fine-tuned model on any labeled split"

_EPILOG = f"""\
examples:
  bert-jax evaluate runs/reviews columns --test new.csv --text review --label sentiment
  bert-jax evaluate exported glue/rte --glue-dir glue_data --split dev
  bert-jax evaluate runs/all conll --dev eng.testb --model-task conll

MODEL is a run folder, an export, or another Hugging Face folder of a model with a head.
{TASKS_HELP}
The output is {{"dev": {{"accuracy": 0.91, ...}}, ...}}, with the splits that have labels.
"""

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL, TASK with its flags, --split, --model-task, --max-length and --batch-size."""
    parser.add_argument("model", metavar="MODEL", help="run folder or exported model")
    add_task_arguments(parser)
    parser.add_argument(
        "--split", metavar="NAME", help="split to evaluate (default: all except train)"
    )
    parser.add_argument(
        "--model-task", metavar="NAME", help="task of a run with several, whose head is used"
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="TOKENS",
        help="maximum length of a sequence (default: as in training)",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=32,
        metavar="N",
        help="sequences computed at once (default: 32)",
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Prints one JSON object with the metrics of each split."""
    config = task_config(args)
    from tqdm import tqdm

    from bert_jax.data.finetuning.example import is_labeled
    from bert_jax.data.finetuning.readers.load_task import load_task
    from bert_jax.predict.predictor import Predictor
    from bert_jax.pretrained.load import load_model

    predictor = Predictor(
        load_model(args.model, args.model_task),
        max_length=args.max_length,
        batch_size=args.batch_size,
    )
    task = load_task(config)
    splits = [args.split] if args.split else [name for name in task.splits if name != "train"]
    if not splits:
        raise ConfigError(f"{task.name} has only the split train; add --dev or --test, or --split")
    results: dict[str, dict[str, float]] = {}
    for split in splits:
        examples = task.splits.get(split, ())
        if not args.split and not any(map(is_labeled, examples)):
            logger.info("%s: left out, because its examples have no labels", split)
            continue
        with tqdm(desc=split, total=len(examples), unit=" examples", disable=None) as bar:
            results[split] = predictor.evaluate(task, split, on_progress=bar.update)
    print(json.dumps(results, indent=2))
