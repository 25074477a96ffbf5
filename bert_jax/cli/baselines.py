"""Runs `bert-jax baselines`: computes n-gram losses on the held-out positions of a run."""

import argparse
import json
from pathlib import Path

HELP = "compare the held-out masked-LM loss of a run with n-gram models"

_EPILOG = """example:
  bert-jax baselines runs/tiny

Fits a unigram and an interpolated bigram model on the corpus that the run was trained on, and
evaluates them at the masked positions of the run's held-out evaluation. Prints one JSON line;
losses are in nats per masked token.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds RUN."""
    parser.add_argument(
        "run_folder", metavar="RUN", help="run folder of a run with a held-out corpus"
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Prints the losses as one JSON line."""
    print(json.dumps(compare_with_ngrams(Path(args.run_folder))))


def compare_with_ngrams(folder: Path) -> dict[str, float | None]:
    """Returns the n-gram losses and the final held-out results of the run, None if not finished.

    Raises:
      UserError: `folder` is not a run folder, or its run has no held-out corpus.
    """
    from bert_jax.config_lib import from_json
    from bert_jax.experiment import Experiment
    from bert_jax.runs import run_folder
    from bert_jax.studies.ngram_comparison import ngram_baseline_losses

    experiment = from_json(Experiment, run_folder.read_config(folder))
    losses = ngram_baseline_losses(experiment)
    file = folder / run_folder.EVALUATION
    evaluation = run_folder.read_json(file) if file.exists() else {}
    return {
        "mlm_loss": evaluation.get("mlm_loss"),
        "bigram": losses["bigram"],
        "unigram": losses["unigram"],
        "masked_tokens": losses["tokens"],
        "nsp_accuracy": evaluation.get("nsp_accuracy"),
    }
