"""Computes features and predictions for the methods of `few-shot` that train no encoder."""

from collections.abc import Sequence

import numpy as np

from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.predict.embedder import Embedder
from bert_jax.tasks.metrics.text_baselines import pair_features, tfidf_predictions


def train_examples(sample: Task) -> tuple[list[TextExample], list[str]]:
    """Returns the training examples of a sample and their labels."""
    examples = [each for each in sample.splits["train"] if isinstance(each, TextExample)]
    return examples, [str(example.label) for example in examples]


def embed_examples(embedder: Embedder, examples: Sequence[TextExample]) -> np.ndarray:
    """Returns the features of examples, float32 [n, E] or, of pairs, [n, 4 E].

    Args:
      embedder: gives the vectors of the texts.
      examples: texts, whose features are their vectors, or pairs, for which see `pair_features`.
    """
    first = np.stack([each.vector for each in embedder([e.text for e in examples])])
    pairs = [e.text_pair for e in examples if e.text_pair is not None]
    if not pairs:
        return first
    return pair_features(first, np.stack([each.vector for each in embedder(pairs)]))


def predict_tfidf(sample: Task) -> list[str]:
    """Predicts the labels of the test split from TF-IDF features of the training split.

    Both texts of a pair are joined with a space.
    """
    train, labels = train_examples(sample)
    texts = [
        f"{each.text} {each.text_pair or ''}"
        for each in (*train, *sample.splits["test"])
        if isinstance(each, TextExample)
    ]
    return tfidf_predictions((texts[: len(train)], labels), texts[len(train) :])
