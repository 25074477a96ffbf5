"""Runs `bert-jax fisher`: estimates the Fisher information of a pretrained model, for EWC."""

import argparse
from pathlib import Path

HELP = "estimate the Fisher information of each weight on pretraining text, for EWC"

_EPILOG = """examples:
  bert-jax fisher exported --corpus prepared --output fisher.safetensors
  bert-jax finetune glue/rte --glue-dir glue_data --model exported --run runs/rte \\
      --set 'train.tuning.weight_anchor={"type": "EWC", "fisher": "fisher.safetensors"}'

EWC (elastic weight consolidation) keeps the weights with high Fisher information close to their
pretrained values during fine-tuning, so that the model forgets less of what it has learned from
pretraining text.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL, --corpus, --output and --num-examples."""
    parser.add_argument(
        "model", metavar="MODEL", help="pretrained model: a run folder or an export"
    )
    parser.add_argument(
        "--corpus",
        metavar="FOLDER",
        required=True,
        help="general text, prepared with `bert-jax prepare`",
    )
    parser.add_argument("--output", metavar="FILE", required=True, help="new .safetensors file")
    parser.add_argument(
        "--num-examples",
        type=int,
        default=512,
        metavar="N",
        help="sequences of the corpus to use (default: 512)",
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Writes the file of Fisher information."""
    from bert_jax.io.atomic_io import check_writable
    from bert_jax.pretrained.load import load_model
    from bert_jax.train.tuning.fisher import fisher_information, save_fisher

    check_writable(Path(args.output))
    fisher = fisher_information(
        load_model(args.model), Path(args.corpus), num_examples=args.num_examples
    )
    save_fisher(fisher, Path(args.output))
    print(f"{args.output}: {len(fisher)} arrays")
