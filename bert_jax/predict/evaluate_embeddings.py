"""Evaluates a sentence encoder on the examples of a labeled task."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.errors import UserError
from bert_jax.predict.embedder import Embedder
from bert_jax.tasks.metrics.sentence_embeddings import (
    pair_classification_metrics,
    pairwise_similarity,
    similarity_metrics,
    vector_classification_metrics,
)


class EmbeddingScores(NamedTuple):
    """Holds the metrics of a task.

    Attributes:
      evaluation: "sts", "pair_classification" or "classification".
      num_examples: the number of evaluated texts or pairs.
      metrics: name -> value, the main metric first.
    """

    evaluation: str
    num_examples: int
    metrics: dict[str, float]


def evaluate_embeddings(embed: Embedder, task: Task, split: str = "dev") -> EmbeddingScores:
    """Evaluates vectors on a split of a task, whose form decides how.

    sts                   pairs with scores: correlation of the similarity with the score
    pair_classification   pairs with two labels, of which the second means equal pairs
    classification        single texts: logistic regression, trained on the vectors of "train"

    Raises:
      UserError: the task has another form or no such split, or an example has no label.
    """
    examples = _labeled_texts(task, split)
    has_pairs = examples[0].text_pair is not None
    if not has_pairs and task.labels:
        train = _labeled_texts(task, "train")
        metrics = vector_classification_metrics(
            embed([example.text for example in train]),
            [str(example.label) for example in train],
            embed([example.text for example in examples]),
            [str(example.label) for example in examples],
        )
        return EmbeddingScores("classification", len(examples), metrics)
    if not has_pairs or len(task.labels) not in (0, 2):
        form = f"{len(task.labels)} labels" if task.labels else "scores of single texts"
        raise UserError(
            f"{task.name} has {form}; expected pairs with scores or with two labels, or single "
            "texts with labels"
        )
    similarities = _similarities(embed, examples)
    if not task.labels:
        scores = np.array([example.label for example in examples], np.float64)
        return EmbeddingScores("sts", len(examples), similarity_metrics(scores, similarities))
    positive = task.labels[1]
    labels = np.array([int(example.label == positive) for example in examples])
    metrics = pair_classification_metrics(labels, similarities)
    return EmbeddingScores("pair_classification", len(examples), metrics)


def _labeled_texts(task: Task, split: str) -> list[TextExample]:
    if split not in task.splits:
        raise UserError(
            f"{task.name} has no split {split!r}; its splits are {', '.join(task.splits)}"
        )
    examples: list[TextExample] = []
    for example in task.splits[split]:
        if not isinstance(example, TextExample) or isinstance(example.label, tuple):
            raise UserError(f"{task.name} has no texts with one label each, so vectors do not fit")
        if example.label is None:
            raise UserError(f"{task.name}: {split} example {example.id} has no label")
        examples.append(example)
    return examples


def _similarities(embed: Embedder, pairs: Sequence[TextExample]) -> np.ndarray:
    """Returns the similarity of each pair; a text that occurs several times is embedded once."""
    texts = [(pair.text, pair.text_pair or "") for pair in pairs]
    rows: dict[str, int] = {}
    for text in (text for pair in texts for text in pair):
        rows.setdefault(text, len(rows))
    vectors: np.ndarray[Any, Any] = embed(list(rows))
    first, second = (vectors[[rows[pair[side]] for pair in texts]] for side in (0, 1))
    return pairwise_similarity(first, second, embed.config.similarity)
