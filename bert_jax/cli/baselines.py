"""`bert-jax baselines`: what n-gram models reach on the held-out positions of a run."""

import argparse
import json
from pathlib import Path

HELP = "n-gram losses on the held-out masked positions of a run, beside the run's own"

_EPILOG = """example:
  bert-jax baselines runs/tiny

Fits a unigram and an interpolated bigram model on the corpus that the run was trained on, and
judges them on the masked positions of the run's own held-out pass. One JSON line, in nats per
masked token.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN."""
    parser.add_argument("run_folder", metavar="RUN", help="a run folder with a held-out corpus")
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Prints the losses."""
    print(json.dumps(compare_with_ngrams(Path(args.run_folder))))


def compare_with_ngrams(folder: Path) -> dict[str, float | None]:
    """The n-gram losses and the run's last held-out results (None before its end).

    Raises:
      UserError: not a run folder, or a run without a held-out corpus.
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
