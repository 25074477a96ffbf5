"""Runs `bert-jax fisher`: estimates the Fisher information of a pretrained model, for EWC."""

from dataclasses import dataclass
from pathlib import Path

from bert_jax.config.flags import REQUIRED, flag, positional

HELP = "estimate the Fisher information of each weight on pretraining text, for EWC"

EPILOG = """examples:
  bert-jax fisher exported --corpus prepared --output fisher.safetensors
  bert-jax finetune glue/rte --glue-dir glue_data --model exported --run runs/rte \\
      --set 'train.tuning.weight_anchor={"type": "EWC", "fisher": "fisher.safetensors"}'

EWC (elastic weight consolidation) keeps the weights with high Fisher information close to their
pretrained values during fine-tuning, so that the model forgets less of what it has learned from
pretraining text.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the model, the text and the file."""

    model: str = positional("MODEL", "pretrained model: a run folder or an export")
    corpus: str = flag("FOLDER", "general text, prepared with `bert-jax prepare`", REQUIRED)
    output: str = flag("FILE", "new .safetensors file", REQUIRED)
    num_examples: int = flag("N", "sequences of the corpus to use", 512)


def run(args: Arguments) -> None:
    """Writes the file of Fisher information."""
    from bert_jax.io.atomic_io import check_writable
    from bert_jax.pretrained.load import load_encoder
    from bert_jax.train.tuning.fisher import fisher_information, save_fisher

    check_writable(args.output)
    fisher = fisher_information(
        load_encoder(args.model), Path(args.corpus), num_examples=args.num_examples
    )
    save_fisher(fisher, Path(args.output))
    print(f"{args.output}: {len(fisher)} arrays")
