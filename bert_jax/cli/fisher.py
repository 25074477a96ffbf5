"""`bert-jax fisher`: how much a model's old text resists a change, for EWC."""

import argparse
from pathlib import Path

HELP = "measure which weights matter for a model's own text, to hold them in fine-tuning (EWC)"

_EPILOG = """example:
  bert-jax fisher exported --prepared prepared --output fisher.safetensors
  bert-jax finetune glue/rte --glue-dir glue_data --model exported --run runs/rte \\
      --set 'train.tuning.weight_anchor={"type": "EWC", "fisher": "fisher.safetensors"}'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, --prepared, --output, --texts."""
    parser.add_argument("model", metavar="MODEL", help="as it was pretrained: a run or an export")
    parser.add_argument(
        "--prepared", metavar="FOLDER", required=True, help="text in general, by bert-jax prepare"
    )
    parser.add_argument("--output", metavar="FILE", required=True, help="a .safetensors file")
    parser.add_argument("--texts", type=int, default=512, metavar="N", help="default: 512")
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Writes the file."""
    from bert_jax.pretrained.load import load_model
    from bert_jax.tuning.fisher import fisher_information, save_fisher

    measured = fisher_information(
        load_model(args.model), Path(args.prepared), num_examples=args.texts
    )
    save_fisher(measured, Path(args.output))
    print(f"{args.output}: {len(measured)} arrays")
