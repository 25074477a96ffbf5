"""Runs `bert-jax unlearn`: continues a run as if it had never read some documents."""

import logging
from dataclasses import dataclass
from pathlib import Path

from bert_jax.config.flags import REQUIRED, flag, positional, switch

logger = logging.getLogger(__name__)

HELP = "train again without some documents, from the last checkpoint before they were read"

EPILOG = """examples:
  bert-jax seen runs/novels "It was the best of times" --documents documents.tsv
  bert-jax unlearn runs/novels --documents documents.tsv --output runs/without --dry-run
  bert-jax unlearn runs/novels --documents documents.tsv --output runs/without

Training continues from the last checkpoint before the documents were first read. From there on,
each example with text of one of them is padding, and all other examples, their order and their
masks stay what they were. The new run is, bit for bit, the run that never read the documents:
`bert-jax seen` finds no reading in it. All updates after the checkpoint are repeated; --dry-run
says how many.

A run keeps its newest three checkpoints. For a run that may have to unlearn, keep more:
--set train.checkpoints.keep_last=50. If no checkpoint is early enough, run the recipe again in
another folder with --set data.without=documents.tsv.

The same command resumes a run that was stopped. Exit codes are those of `bert-jax pretrain`.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the run, the documents and the new run."""

    run_path: str = positional("RUN", "pretraining run")
    documents: str = flag(
        "FILE", "documents to remove, as `bert-jax seen --documents` writes them", REQUIRED
    )
    output: str = flag("FOLDER", "run folder of the new run", REQUIRED)
    dry_run: bool = switch("only print what it would cost")


def run(args: Arguments) -> int:
    """Trains and returns the exit code of the run."""
    from bert_jax.apps.seen.unlearn import continued_run, plan_unlearning, write_run_without

    output = Path(args.output)
    experiment = None if args.dry_run else continued_run(output, Path(args.documents))
    if experiment is None:
        plan, history = plan_unlearning(Path(args.run_path), Path(args.documents))
        logger.info("%s", plan)
        if args.dry_run:
            return 0
        experiment = write_run_without(plan, history, Path(args.documents), output)
    from bert_jax.parallel.processes import config_from_environment, initialize

    initialize(config_from_environment())
    from bert_jax.train.run import run as train

    return train(experiment, output)
