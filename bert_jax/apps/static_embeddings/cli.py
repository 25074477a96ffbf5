"""Runs `bert-jax distill-static`: makes a static embedding model from an encoder."""

import logging
from dataclasses import dataclass
from pathlib import Path

from bert_jax.cli.arguments import MODEL_WITHOUT_HEAD, ModelArguments
from bert_jax.config.flags import REQUIRED, flag

logger = logging.getLogger(__name__)

HELP = "distill an encoder into static embeddings, one vector for each token"

EPILOG = f"""examples:
  bert-jax distill-static all-MiniLM-L6-v2 --output static
  python -c "from model2vec import StaticModel; StaticModel.from_pretrained('static')"

{MODEL_WITHOUT_HEAD}
Every token of the vocabulary is encoded alone, which takes about a minute on a CPU and needs no
texts. The vector of a text is the mean of the vectors of its tokens: hundreds of times faster than
the encoder, and less accurate, because the order of words has no effect. The folder has the format
of model2vec, which sentence-transformers reads, too.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(ModelArguments):
    """Names the model, the size of vectors and the folder."""

    dimensions: int = flag(
        "N", "components of a vector, at most the hidden size of the encoder", 256
    )
    output: str = flag("FOLDER", "new folder to write", REQUIRED)


def run(args: Arguments) -> None:
    """Writes the folder and prints its size."""
    from bert_jax.apps.static_embeddings.static_model import distill_static
    from bert_jax.io.atomic_io import check_new_folder
    from bert_jax.pretrained.load import load_encoder

    check_new_folder(Path(args.output))
    facts = distill_static(load_encoder(args.model), Path(args.output), args.dimensions)
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
