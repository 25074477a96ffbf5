"""`bert-jax export`: a trained model as a Hugging Face folder, read back before it appears."""

import argparse
import sys
from pathlib import Path

HELP = "write a run's model as a folder that Hugging Face opens"

_EPILOG = """example:
  bert-jax export runs/tiny --output exported
  python -c "from transformers import AutoModel; AutoModel.from_pretrained('exported')"

RUN is a run folder (its newest good checkpoint), or one step: runs/tiny/checkpoints/1000. Of a run
of several tasks, --task says which one's model is written: bert-jax export runs/all --task rte ...
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN, --task, --output."""
    parser.add_argument("run_folder", metavar="RUN", help="a run folder, or one of its checkpoints")
    parser.add_argument("--task", metavar="NAME", help="of a run of several tasks: which one")
    parser.add_argument("--output", metavar="FOLDER", required=True, help="a new folder")
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> int:
    """Exports, and says how closely the folder gives back the model."""
    from bert_jax.export.export import export
    from bert_jax.pretrained.load import load_model

    model = load_model(args.run_folder, args.task)
    difference = export(model, Path(args.output))
    step = f"step {model.run.step} of " if model.run else ""
    print(
        f"{step}{args.run_folder} is in {args.output}; read back, its hidden states differ by at "
        f"most {difference:.1e}",
        file=sys.stderr,
    )
    return 0
