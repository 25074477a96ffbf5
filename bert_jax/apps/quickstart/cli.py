"""Defines `bert-jax quickstart`: from documentation on this machine to a fine-tuned BERT."""

from dataclasses import dataclass
from pathlib import Path

from bert_jax.config.flags import REQUIRED, flag

HELP = "train, export, and fine-tune a tiny BERT on Python documentation of this machine"

EPILOG = """example:
  bert-jax quickstart --output quickstart

Gathers and curates the docstrings of Python and of the installed packages, trains a tokenizer,
prepares the text, pretrains a tiny BERT, evaluates it on held-out packages, exports it, fills a few
masks, and fine-tunes it for two classification tasks. The same command resumes after a stop.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the output folder, the recipe, and how long it trains."""

    output: str = flag("FOLDER", "folder of all outputs", REQUIRED)
    recipe: str = flag("", "pretraining recipe", "configs/quickstart.py")
    steps: int | None = flag("N", "number of training steps (default: the recipe's)")
    seed: int = flag("", "seed of all training", 0)


def run(args: Arguments) -> int:
    """Runs the stages that are not finished; returns the exit code."""
    from bert_jax.apps.quickstart.stages import run_stages

    return run_stages(Path(args.output), recipe=args.recipe, steps=args.steps, seed=args.seed)
