"""Makes static vectors of a contextual model: means over contexts (Bommasani et al. 2020)."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bert_jax.apps.word_vectors.sentences import split_words
from bert_jax.apps.word_vectors.train import check_min_count
from bert_jax.apps.word_vectors.vectors import WordVectors
from bert_jax.apps.word_vectors.word_encoder import WordEncoder
from bert_jax.errors import ConfigError

_TEXTS_AT_ONCE = 256


def average_contexts(
    encoder: WordEncoder, texts: Sequence[str], *, layer: int, max_contexts: int, min_count: int
) -> WordVectors:
    """Averages the vectors of each word over its occurrences in texts.

    Args:
      texts: sentences; those without a word that needs a context are not encoded.
      layer: the number of a layer, from 0; negative numbers count from the end.
      max_contexts: the first occurrences of a word that are averaged.
      min_count: occurrences that a word needs to have a vector.

    Raises:
      ConfigError: there is no such layer.
      UserError: no word is frequent enough.
    """
    number = len(encoder.layer_names)
    if not -number <= layer < number:
        raise ConfigError(
            f"layer is {layer}, but the model has {number}: {', '.join(encoder.layer_names)}; "
            f"expected a number from 0 to {number - 1}"
        )
    sentences = [split_words(text) for text in texts]
    check_min_count(sentences, min_count)
    counts = Counter(word for words in sentences for word in words)
    vocabulary = [word for word, count in counts.most_common() if count >= min_count]
    missing = dict.fromkeys(vocabulary, max_contexts)
    chosen: list[int] = []
    for index, words in enumerate(sentences):
        if any(missing.get(word, 0) > 0 for word in words):
            chosen.append(index)
            for word in words:
                if word in missing:
                    missing[word] -= 1
    sums: dict[str, np.ndarray] = {}
    averaged: Counter[str] = Counter()
    for start in range(0, len(chosen), _TEXTS_AT_ONCE):
        indices = chosen[start : start + _TEXTS_AT_ONCE]
        embedded = encoder.embed([texts[index] for index in indices])
        for index, vectors in zip(indices, embedded, strict=True):
            for word, vector in zip(sentences[index], vectors[:, layer], strict=True):
                # Zeros stand for a word after the maximum length.
                if word in missing and averaged[word] < max_contexts and vector.any():
                    sums[word] = sums.get(word, 0.0) + vector.astype(np.float64)
                    averaged[word] += 1
    words = [word for word in vocabulary if word in sums]
    return WordVectors(words, np.stack([sums[word] / averaged[word] for word in words]))
