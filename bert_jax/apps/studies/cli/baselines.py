"""Runs `bert-jax baselines`: computes n-gram losses on the held-out positions of a run."""

import json
from dataclasses import dataclass
from pathlib import Path

from bert_jax.config.flags import positional

HELP = "compare the held-out masked-LM loss of a run with n-gram models"

EPILOG = """example:
  bert-jax baselines runs/tiny

Fits a unigram and an interpolated bigram model on the corpus that the run was trained on, and
evaluates them at the masked positions of the run's held-out evaluation. Prints one JSON line;
losses are in nats per masked token.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the run."""

    run_folder: str = positional("RUN", "run folder of a run with a held-out corpus")


def run(args: Arguments) -> None:
    """Prints the losses as one JSON line."""
    from bert_jax.apps.studies.ngram_comparison import compare_with_ngrams

    print(json.dumps(compare_with_ngrams(Path(args.run_folder))))
