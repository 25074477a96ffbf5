"""Runs `bert-jax setfit`: trains a classifier from a few labeled texts with a sentence encoder."""

from dataclasses import dataclass
from pathlib import Path

from bert_jax.cli.arguments import RUN_FOLDER, TaskArguments
from bert_jax.config.flags import REQUIRED, flag, given
from bert_jax.config.labeled_data import Columns, Glue, Snli
from bert_jax.errors import ConfigError

HELP = "train a classifier from a few labeled texts with a sentence encoder (SetFit)"

EPILOG = """examples:
  bert-jax setfit columns --train train.csv --dev dev.csv --text review --label sentiment \\
      --model all-MiniLM-L6-v2 --run runs/reviews
  bert-jax setfit columns --train train.csv --text review --label sentiment --num-iterations 20 \\
      --model all-MiniLM-L6-v2 --run runs/reviews

SetFit (Tunstall et al. 2022) brings texts of a class together and moves the classes apart, then
fits a logistic regression to the vectors. The paper uses 8 to 64 texts of each class. The number
of pairs grows with the square of the number of texts, unless --num-iterations limits it; with more
labels, compare it with `bert-jax finetune`. Both texts of a pair are joined with a space.

--model is a sentence encoder: a folder of sentence-transformers or a run of `bert-jax embed-train`.
Of other models, the mean over all tokens is the vector of a text.

`bert-jax predict` and `evaluate` read the run folder; evaluation.json has the metrics of the
labeled splits. The same command resumes a run that was stopped. Exit codes: 0 done, 1 failure, 2
usage, 75 stopped by SIGTERM or Ctrl-C after saving a checkpoint.
"""

_SETTINGS = ("epochs", "batch_size", "learning_rate", "max_length", "seed")


@dataclass(frozen=True, kw_only=True)
class Arguments(TaskArguments):
    """Names the task, the sentence encoder, the run folder and the hyperparameters."""

    model: str = flag("", "sentence encoder to start from: a folder or a run", REQUIRED)
    run: str = flag("FOLDER", RUN_FOLDER, REQUIRED)
    num_iterations: int | None = flag(
        "N",
        "N pairs of the same class and N pairs of different classes for each text (default: all "
        "pairs, the rarer kind repeated)",
    )
    epochs: float | None = flag("N", "epochs over the pairs (default: 1)")
    batch_size: int | None = flag("N", "pairs of a batch (default: 16)")
    learning_rate: float | None = flag("RATE", "peak learning rate (default: 2e-5)")
    max_length: int | None = flag(
        "TOKENS", "length of a text (default: as in the model, or 128, up to 256 for longer texts)"
    )
    seed: int | None = flag("N", "random seed (default: 0)")


def run(args: Arguments) -> int:
    """Trains encoder and head; returns the exit code of the run."""
    task = args.task_config()
    if not isinstance(task, Glue | Snli | Columns):
        raise ConfigError(
            f"SetFit is for classification, but the task is {args.task}; expected glue/NAME, snli "
            "or columns"
        )
    from bert_jax.config.sentence_embeddings import ContrastivePairs
    from bert_jax.train.setfit import SetFitConfig, train_setfit

    settings = given(args, *_SETTINGS)
    pairs = ContrastivePairs(
        task=task, num_iterations=args.num_iterations, seed=settings.get("seed", SetFitConfig.seed)
    )
    return train_setfit(SetFitConfig(pairs=pairs, model=args.model, **settings), Path(args.run))
