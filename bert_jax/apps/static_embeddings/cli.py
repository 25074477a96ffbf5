"""Runs `bert-jax distill-static`: makes a static embedding model from an encoder."""

import argparse
import logging
from pathlib import Path

from bert_jax.cli.arguments.prediction import MODEL_WITHOUT_HEAD, add_model_argument

logger = logging.getLogger(__name__)

HELP = "distill an encoder into static embeddings, one vector for each token"

_EPILOG = f"""examples:
  bert-jax distill-static all-MiniLM-L6-v2 --output static
  python -c "from model2vec import StaticModel; StaticModel.from_pretrained('static')"

{MODEL_WITHOUT_HEAD}
Every token of the vocabulary is encoded alone, which takes about a minute on a CPU and needs no
texts. The vector of a text is the mean of the vectors of its tokens: hundreds of times faster than
the encoder, and less accurate, because the order of words has no effect. The folder has the format
of model2vec, which sentence-transformers reads, too.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL, --dimensions and --output."""
    add_model_argument(parser)
    parser.add_argument(
        "--dimensions",
        type=int,
        default=256,
        metavar="N",
        help="components of a vector, at most the hidden size of the encoder (default: 256)",
    )
    parser.add_argument("--output", metavar="FOLDER", required=True, help="new folder to write")
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Writes the folder and prints its size."""
    from bert_jax.apps.static_embeddings.static_model import distill_static
    from bert_jax.io.atomic_io import check_new_folder
    from bert_jax.pretrained.load import load_model

    check_new_folder(Path(args.output))
    facts = distill_static(load_model(args.model), Path(args.output), args.dimensions)
    logger.info(
        "distilled %s into %s: %s tokens with %d dimensions, which have %.1f %% of the variance, "
        "in %.0f s",
        args.model,
        args.output,
        f"{facts.num_tokens:,}",
        facts.dimensions,
        100 * facts.explained_variance,
        facts.seconds,
    )
