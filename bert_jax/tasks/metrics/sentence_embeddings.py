"""Computes metrics of vectors of texts: semantic similarity, pair classification, classification.

Each kind of evaluation is a function of vectors; retrieval is in `retrieval.py`. scikit-learn takes
a second to import, so it is imported where it is used.
"""

from collections.abc import Sequence

import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.sentence_encoder.config import Similarity
from bert_jax.tasks.metrics.regression import REGRESSION_METRICS
from bert_jax.tasks.metrics.text_baselines import logistic_regression
from bert_jax.tasks.metrics.validate_inputs import require_finite, require_matching_counts


def pairwise_similarity(
    first: np.ndarray, second: np.ndarray, similarity: Similarity = "cosine"
) -> np.ndarray:
    """Computes the similarity of each vector with its partner, [N, E] and [N, E] -> float64 [N].

    Of a distance, the negative is returned. The cosine with a vector of zeros is 0.
    """
    # Correlations compare ranks, and float32 would give ties to nearly equal similarities.
    first, second = first.astype(np.float64), second.astype(np.float64)
    match similarity:
        case "dot":
            return np.sum(first * second, axis=1)
        case "euclidean":
            return -np.linalg.norm(first - second, axis=1)
        case "manhattan":
            return -np.abs(first - second).sum(axis=1)
        case "cosine":
            norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
            return np.sum(first * second, axis=1) / np.maximum(norms, 1e-24)


def similarity_metrics(scores: np.ndarray, similarities: np.ndarray) -> dict[str, float]:
    """Computes the correlations of similarities with scores of people, over all pairs.

    The main metric of semantic textual similarity (STS) is "spearman", with the mean rank for ties.

    Args:
      scores: float [N].
      similarities: float [N].

    Raises:
      UserError: there are no pairs, or a number is not finite.
    """
    _check_pairs(scores, similarities)
    targets = np.asarray(scores, np.float64)
    names = ("spearman", "pearson")
    return {name: REGRESSION_METRICS[name](targets, similarities) for name in names}


def pair_classification_metrics(labels: np.ndarray, similarities: np.ndarray) -> dict[str, float]:
    """Computes how well a threshold of the similarity separates pairs.

    Args:
      labels: int [N], 1 = pairs that belong together, 0 = others.
      similarities: float [N].

    Returns:
      average_precision    area under the curve of precision over recall
      accuracy             with the best threshold, which is chosen on these pairs
      accuracy_threshold   the smallest similarity that is accepted, between two pairs
      f1, f1_threshold     the same for the F1 of label 1

    Raises:
      UserError: there are no pairs, a number is not finite, or all labels are equal.
    """
    from sklearn.metrics import average_precision_score

    _check_pairs(labels, similarities)
    labels = np.asarray(labels)
    num_positives = int(labels.sum())
    if num_positives in (0, len(labels)):
        raise UserError(
            f"all {len(labels):,} pairs have the same label; expected pairs with both labels"
        )
    # All thresholds are tried at once: after sorting, the pairs that one accepts are a prefix.
    order = np.argsort(-similarities, kind="stable")
    sorted_similarities = similarities[order]
    true_positives = np.cumsum(labels[order])
    accepted = np.arange(1, len(labels) + 1)
    true_negatives = len(labels) - num_positives - (accepted - true_positives)
    curves = {
        "accuracy": (true_positives + true_negatives) / len(labels),
        "f1": 2 * true_positives / (accepted + num_positives),
    }
    # Pairs of equal similarity are accepted together.
    is_cut = np.append(sorted_similarities[:-1] > sorted_similarities[1:], True)
    metrics = {"average_precision": float(average_precision_score(labels, similarities))}
    following = np.append(sorted_similarities[1:], sorted_similarities[-1])
    for name, curve in curves.items():
        best = int(np.argmax(np.where(is_cut, curve, -1.0)))
        threshold = (sorted_similarities[best] + following[best]) / 2
        metrics |= {name: float(curve[best]), f"{name}_threshold": float(threshold)}
    return metrics


def vector_classification_metrics(
    train_vectors: np.ndarray,
    train_labels: Sequence[str],
    vectors: np.ndarray,
    labels: Sequence[str],
) -> dict[str, float]:
    """Computes accuracy and macro F1 of logistic regression on frozen vectors.

    Args:
      train_vectors: float [M, E].
      vectors: float [N, E].

    Raises:
      UserError: there are no examples, a number is not finite, or training has one class only.
    """
    from sklearn.metrics import accuracy_score, f1_score

    for name, matrix, names in (
        ("training examples", train_vectors, train_labels),
        ("examples", vectors, labels),
    ):
        require_matching_counts(name, len(names), len(matrix))
        require_finite(f"the vectors of the {name}", matrix)
    if len(set(train_labels)) < 2:
        raise UserError(
            f"all training examples have the label {train_labels[0]!r}; expected two or more labels"
        )
    predictions = logistic_regression(train_vectors, train_labels, vectors)
    return {
        "accuracy": float(accuracy_score(labels, predictions)),
        "f1_macro": float(f1_score(labels, predictions, average="macro")),
    }


def _check_pairs(targets: np.ndarray, similarities: np.ndarray) -> None:
    require_matching_counts("pairs", len(targets), len(similarities))
    require_finite("the labels", np.asarray(targets, np.float64))
    require_finite("the similarities", similarities)
