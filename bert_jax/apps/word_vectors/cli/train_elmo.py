"""Runs `bert-jax word-vectors train-elmo`: ELMo on a corpus."""

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path

from bert_jax.apps.word_vectors.cli.train import CORPUS_HELP
from bert_jax.config.flags import REQUIRED, flag, positional
from bert_jax.errors import check_range

logger = logging.getLogger(__name__)

HELP = "train ELMo: convolutions over characters and language models in both directions"

EPILOG = f"""examples:
  bert-jax word-vectors train-elmo prepared --steps 2000 --output elmo
  bert-jax word-vectors train-elmo 'books/*.txt.gz' --steps 500 --cell-size 256 --output elmo

The network is that of Peters et al. 2018 with smaller sizes, a softmax over all words and AdamW.
The folder has config.json and model.safetensors. A run that is stopped begins again.

{CORPUS_HELP}"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the corpus, the sizes of the network and the settings of training."""

    corpus: tuple[str, ...] = positional("CORPUS", "prepared corpus, or text or .jsonl files")
    output: str = flag("FOLDER", "new folder of the model", REQUIRED)
    steps: int = flag("N", "updates", REQUIRED)
    batch_size: int = flag("N", "examples of an update", 32)
    seq_length: int = flag("N", "words of an example", 32)
    learning_rate: float = flag("RATE", "peak learning rate of AdamW", 1e-3)
    min_count: int = flag("N", "occurrences that a word needs to be predicted", 5)
    seed: int = flag("N", "seed of parameters and of the order of examples", 1)
    projection_size: int = flag("N", "size of a word and of the state of one direction", 128)
    cell_size: int = flag("N", "cells of an LSTM", 512)

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "min_count", "projection_size", "cell_size"):
            check_range(f"--{name.replace('_', '-')}", getattr(self, name), at_least=1)


def run(args: Arguments) -> None:
    """Reads the corpus, trains, and writes the folder."""
    from bert_jax.apps.word_vectors.elmo import ElmoTraining, train_elmo
    from bert_jax.apps.word_vectors.sentences import read_sentences
    from bert_jax.io.atomic_io import check_new_folder

    check_new_folder(Path(args.output))
    names = [field.name for field in dataclasses.fields(ElmoTraining)]
    model, losses = train_elmo(
        read_sentences(args.corpus),
        ElmoTraining(**{name: getattr(args, name) for name in names}),
        projection_size=args.projection_size,
        cell_size=args.cell_size,
    )
    model.save(Path(args.output))
    logger.info("%s: loss %.3f nats at first, %.3f at last", args.output, losses[0], losses[-1])
