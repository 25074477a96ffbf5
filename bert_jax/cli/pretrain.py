"""Runs `bert-jax pretrain`: trains a recipe in a run folder, or resumes the run found there."""

import dataclasses
from dataclasses import dataclass

from bert_jax.cli.arguments import CorporaArguments, RunArguments
from bert_jax.config.flags import flag

HELP = "pretrain an encoder, or resume from the newest checkpoint of the run folder"

EPILOG = """example:
  bert-jax pretrain bert --run runs/tiny \\
      --arg size=tiny corpus=data/train heldout=data/heldout steps=10000 --track tensorboard
  bert-jax pretrain bert --run runs/mixed --corpora data/wiki=0.7 data/books=0.3 \\
      --arg size=tiny steps=10000 --set data.corpus.corpora.1.max_epochs=4

`bert-jax recipes` lists the recipes and their arguments (--arg); `bert-jax show-config` shows what
they make. The same command resumes a run that was stopped. Exit codes: 0 done, 1 failure, 2 usage,
75 stopped by SIGTERM or Ctrl-C after saving a checkpoint.

To train with several processes, start each with the same command and set
BERT_JAX_COORDINATOR=HOST:PORT, BERT_JAX_NUM_PROCESSES=N and BERT_JAX_PROCESS_ID=0..N-1; on a TPU
pod set only BERT_JAX_COORDINATOR=auto.
"""

COMMON = ("run", "arg", "corpora", "init_from")


@dataclass(frozen=True, kw_only=True)
class Arguments(RunArguments, CorporaArguments):
    """Names a recipe with its changes, the run folder and the initial weights."""

    init_from: str | None = flag(
        "MODEL",
        "initial weights: a run folder, a Hugging Face folder or a Google TF1 checkpoint",
    )


def run(args: Arguments) -> int:
    """Trains and returns the exit code of the run."""
    experiment = args.tracked(args.experiment())
    if args.init_from:
        experiment = dataclasses.replace(experiment, init_from=args.init_from)
    from bert_jax.parallel.processes import config_from_environment, initialize

    initialize(config_from_environment())
    from bert_jax.train.run import run as train

    return train(experiment, args.clear_run_folder(experiment), args.checkpoints)
