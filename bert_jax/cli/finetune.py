"""`bert-jax finetune`: a pretrained encoder and labelled examples -> a model for the task."""

import argparse
from pathlib import Path

from bert_jax.cli.task_arguments import add_task_arguments, task_config

HELP = "fine-tune an encoder on a task of GLUE, SQuAD, CoNLL or on your own labelled files"

_EPILOG = """examples:
  bert-jax finetune columns --train train.csv --dev dev.csv --text review --label sentiment \\
      --model exported --run runs/reviews
  bert-jax finetune glue/rte --glue-dir glue_data --model exported --run runs/rte --epochs 3

The run folder then holds the checkpoint that was best on dev, predictions/dev.jsonl and test.jsonl,
evaluation.json and report.html; `bert-jax export runs/rte --output rte` makes a Hugging Face folder
of it. Started again with the same arguments it goes on where it stopped. Exit codes: 0 done,
1 failure, 2 usage, 75 stopped by SIGTERM or Ctrl-C with everything saved.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The task's, --model, --run, the usual hyperparameters, --set for all others."""
    add_task_arguments(parser)
    parser.add_argument(
        "--model",
        required=True,
        help="what to start from: a run folder, a Hugging Face folder or a Google TF1 checkpoint",
    )
    parser.add_argument("--run", metavar="FOLDER", required=True, help="the run folder")
    parser.add_argument("--epochs", type=float, default=3.0, help="default: 3")
    parser.add_argument("--batch-size", type=int, default=32, metavar="ROWS", help="default: 32")
    parser.add_argument(
        "--learning-rate", type=float, default=5e-5, metavar="RATE", help="peak; default: 5e-5"
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="PIECES",
        help="of rows (default: 128, and 384 for questions, or what the model can read)",
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="FIELD=VALUE",
        nargs="+",
        default=[],
        help="fields of the resulting config, as train.tuning.layer_decay=0.9",
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> int:
    """Returns the exit code of the run."""
    from bert_jax.config import override
    from bert_jax.train.fine_tuning import fine_tuning

    experiment = fine_tuning(
        task_config(args),
        args.model,
        epochs=args.epochs,
        batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        max_length=args.max_length,
        seed=args.seed,
    )
    experiment = override(experiment, args.overrides)
    from bert_jax.train.distributed import from_environment, initialize

    initialize(from_environment())
    from bert_jax.train.run import run as train

    return train(experiment, Path(args.run))
