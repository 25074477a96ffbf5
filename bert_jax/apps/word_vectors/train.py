"""Trains static word vectors: word2vec and fastText by gensim, and GloVe by `glove.py`."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bert_jax.apps.word_vectors.vectors import WordVectors
from bert_jax.errors import MissingExtraError, UserError, check_range

logger = logging.getLogger(__name__)

Method = Literal["cbow", "skip-gram", "fasttext", "glove"]


@dataclass(frozen=True, kw_only=True)
class WordVectorConfig:
    """Configures the training of static word vectors; None is the default of the method.

    Attributes:
      method: `cbow` and `skip-gram` of word2vec (Mikolov et al. 2013) with 5 negative samples;
        `fasttext`, a skip-gram model with n-grams of 3 to 6 characters (Bojanowski et al. 2017);
        `glove` (Pennington et al. 2014).
      dimensions: components of a vector, D.
      window: words on each side that are the context of a word: 5, or 10 for GloVe.
      epochs: passes over the sentences, 5; over the co-occurrence counts of GloVe, 25.
      min_count: occurrences that a word needs to have a vector.
      seed: of initial vectors and samples; one thread and one seed give the same vectors again.
      threads: threads of gensim.
    """

    method: Method
    dimensions: int = 100
    window: int | None = None
    epochs: int | None = None
    min_count: int = 5
    seed: int = 1
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("dimensions", "window", "epochs", "min_count", "threads"):
            if (value := getattr(self, name)) is not None:
                check_range(name, value, at_least=1)


def train_word_vectors(sentences: Sequence[Sequence[str]], config: WordVectorConfig) -> WordVectors:
    """Trains word vectors on sentences of words.

    Raises:
      UserError: no word is frequent enough.
      MissingExtraError: word2vec or fastText without gensim.
    """
    check_min_count(sentences, config.min_count)
    if config.method != "glove":
        return _train_by_gensim(sentences, config)
    from bert_jax.apps.word_vectors.glove import train_glove

    vectors, losses = train_glove(
        sentences,
        dimensions=config.dimensions,
        window=config.window or 10,
        epochs=config.epochs or 25,
        min_count=config.min_count,
        seed=config.seed,
    )
    logger.info("GloVe's mean loss of a count: %.4f, at last %.4f", losses[0], losses[-1])
    return vectors


def _train_by_gensim(sentences: Sequence[Sequence[str]], config: WordVectorConfig) -> WordVectors:
    try:
        from gensim.models import FastText, Word2Vec
    except ImportError:
        raise MissingExtraError(
            f"word vectors of the method {config.method} need gensim", "word-vectors"
        ) from None
    settings: dict[str, Any] = {
        "vector_size": config.dimensions,
        "window": config.window or 5,
        "min_count": config.min_count,
        "sg": int(config.method != "cbow"),
        "seed": config.seed,
        "workers": config.threads,
    }
    model: Any = FastText(**settings) if config.method == "fasttext" else Word2Vec(**settings)
    model.build_vocab(sentences)
    model.train(sentences, total_examples=len(sentences), epochs=config.epochs or 5)
    return WordVectors(model.wv.index_to_key, model.wv.vectors)


def check_min_count(sentences: Sequence[Sequence[str]], min_count: int) -> None:
    """Raises a UserError if no word occurs often enough."""
    counts = Counter(word for sentence in sentences for word in sentence)
    if max(counts.values(), default=0) < min_count:
        raise UserError(
            f"no word occurs {min_count} times in the corpus; expected a longer corpus or a "
            "smaller --min-count"
        )
