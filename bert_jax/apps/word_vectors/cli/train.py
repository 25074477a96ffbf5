"""Runs `bert-jax word-vectors train`: word2vec, fastText and GloVe on a corpus."""

import dataclasses
import logging
from dataclasses import dataclass

from bert_jax.apps.word_vectors.train import Method, WordVectorConfig
from bert_jax.config.flags import REQUIRED, flag, positional

logger = logging.getLogger(__name__)

HELP = "train static word vectors: word2vec, fastText, GloVe"

CORPUS_HELP = """\
A corpus is the folder that `bert-jax prepare` wrote, or text and .jsonl files. Words are runs of
letters and digits in lower case, without punctuation. A context does not cross the end of a
sentence.
"""

EPILOG = f"""examples:
  bert-jax word-vectors train skip-gram prepared --output skip-gram.txt
  bert-jax word-vectors train glove 'books/*.txt.gz' --dimensions 100 --output glove.txt
  bert-jax word-vectors evaluate skip-gram.txt

cbow, skip-gram and fasttext need gensim: pip install 'bert_jax[word-vectors]'. The output has
word2vec's text format, which gensim reads too. fastText's vectors of n-grams are not in it.

{CORPUS_HELP}"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the method, the corpus and the settings of training."""

    method: Method = positional("METHOD", "cbow, skip-gram, fasttext or glove")
    corpus: tuple[str, ...] = positional("CORPUS", "prepared corpus, or text or .jsonl files")
    output: str = flag("FILE", "file of the vectors, in word2vec's text format", REQUIRED)
    dimensions: int = flag("N", "components of a vector", 100)
    window: int | None = flag(
        "N", "words on each side that are the context of a word (default: 5, GloVe 10)"
    )
    epochs: int | None = flag("N", "passes over the corpus (default: 5, GloVe 25)")
    min_count: int = flag("N", "occurrences that a word needs to have a vector", 5)
    seed: int = flag("N", "seed of initial vectors and samples", 1)
    threads: int = flag("N", "threads of gensim; with more than one, results differ", 1)

    def training_config(self) -> WordVectorConfig:
        """Returns the settings of training."""
        names = [field.name for field in dataclasses.fields(WordVectorConfig)]
        return WordVectorConfig(**{name: getattr(self, name) for name in names})

    def __post_init__(self) -> None:
        self.training_config()


def run(args: Arguments) -> None:
    """Reads the corpus, trains, and writes the vectors."""
    from bert_jax.apps.word_vectors.sentences import read_sentences
    from bert_jax.apps.word_vectors.train import train_word_vectors
    from bert_jax.apps.word_vectors.vectors import write_word_vectors
    from bert_jax.io.atomic_io import check_writable

    check_writable(args.output)
    sentences = read_sentences(args.corpus)
    words = sum(map(len, sentences))
    logger.info("%s sentences of %s words", f"{len(sentences):,}", f"{words:,}")
    vectors = train_word_vectors(sentences, args.training_config())
    write_word_vectors(args.output, vectors)
    logger.info("%s: %s vectors of %d", args.output, f"{len(vectors):,}", args.dimensions)
