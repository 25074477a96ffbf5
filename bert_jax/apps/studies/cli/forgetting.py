"""Runs `bert-jax forgetting`: compares masked-LM losses before and after fine-tuning."""

import json
from dataclasses import dataclass
from pathlib import Path

from bert_jax.config.flags import REQUIRED, flag, positional

HELP = "measure the masked-LM loss on general text before and after fine-tuning"

EPILOG = """example:
  bert-jax forgetting exported runs/rte --corpus prepared/heldout

Prints one JSON line: losses (nats) and accuracies of both encoders at the same masked positions,
both with the masked-LM head of BEFORE, and the change of each parameter relative to its norm.
--output writes it to a file.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the two models and the text."""

    before: str = positional("BEFORE", "pretrained model: a run folder or an export")
    after: str = positional("AFTER", "the same model, fine-tuned: a run folder or an export")
    corpus: str = flag("FOLDER", "general text, prepared with `bert-jax prepare`", REQUIRED)
    num_examples: int = flag("N", "sequences of the corpus to use", 512)
    output: str | None = flag("FILE", "JSON file for the results")


def run(args: Arguments) -> None:
    """Prints losses, accuracies and parameter changes as one JSON line."""
    from bert_jax.apps.studies.forgetting import measure_forgetting
    from bert_jax.io.atomic_io import check_writable, write_json
    from bert_jax.pretrained.load import load_encoder

    check_writable(args.output)
    before, after = load_encoder(args.before), load_encoder(args.after)
    results = measure_forgetting(before, after, Path(args.corpus), num_examples=args.num_examples)
    print(json.dumps(results))
    if args.output is not None:
        write_json(Path(args.output), results)
