"""Runs `bert-jax word-vectors average`: static vectors of a contextual model."""

import logging
from dataclasses import dataclass

from bert_jax.apps.word_vectors.cli.train import CORPUS_HELP
from bert_jax.config.flags import REQUIRED, flag, positional
from bert_jax.errors import check_range

logger = logging.getLogger(__name__)

HELP = "average the vectors of words over their contexts, from a layer of an encoder or ELMo"

EPILOG = f"""examples:
  bert-jax word-vectors average exported prepared --layer 2 --output layer-2.txt
  bert-jax word-vectors average elmo 'books/*.txt' --layer 1 --output elmo-1.txt

The method is that of Bommasani et al. 2020. An encoder reads the sentences with case and
punctuation, and the vector of a word is the mean of its tokens. MODEL is an encoder or a folder of
ELMo.

{CORPUS_HELP}"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the model, the corpus and the layer."""

    model: str = positional("MODEL", "encoder, or folder of ELMo")
    corpus: tuple[str, ...] = positional("CORPUS", "prepared corpus, or text or .jsonl files")
    output: str = flag("FILE", "file of the vectors, in word2vec's text format", REQUIRED)
    layer: int = flag(
        "N", "layer: 0 is the embeddings; a negative one needs the equals sign, as --layer=-1", -1
    )
    contexts: int = flag("N", "first occurrences of a word that are averaged", 20)
    min_count: int = flag("N", "occurrences that a word needs to have a vector", 5)

    def __post_init__(self) -> None:
        check_range("--contexts", self.contexts, at_least=1)
        check_range("--min-count", self.min_count, at_least=1)


def run(args: Arguments) -> None:
    """Reads the corpus, encodes the sentences that are needed, and writes the vectors."""
    from bert_jax.apps.word_vectors.average import average_contexts
    from bert_jax.apps.word_vectors.sentences import read_texts
    from bert_jax.apps.word_vectors.vectors import write_word_vectors
    from bert_jax.apps.word_vectors.word_encoder import load_word_encoder
    from bert_jax.io.atomic_io import check_writable

    check_writable(args.output)
    vectors = average_contexts(
        load_word_encoder(args.model),
        list(read_texts(args.corpus)),
        layer=args.layer,
        max_contexts=args.contexts,
        min_count=args.min_count,
    )
    write_word_vectors(args.output, vectors)
    logger.info("%s: %s vectors", args.output, f"{len(vectors):,}")
