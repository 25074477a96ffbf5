"""Computes baselines for text classification: the most common class, TF-IDF, fixed vectors."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bert_jax.tasks.metrics.vectors import normalize_vectors


def most_common_label(labels: Sequence[str]) -> str:
    """Returns the most common label, the first of those that are equally common."""
    ((label, _),) = Counter(labels).most_common(1)
    return label


def majority_accuracy(train: Sequence[str], dev: Sequence[str]) -> float:
    """Computes the accuracy on dev of always predicting the most common label of train."""
    majority = most_common_label(train)
    return sum(label == majority for label in dev) / len(dev)


def tfidf_predictions(
    train: tuple[Sequence[str], Sequence[str]], texts: Sequence[str]
) -> list[str]:
    """Predicts labels by logistic regression on TF-IDF features of words and bigrams.

    Settings are scikit-learn's defaults except for sublinear counts, C = 10 and the number of
    iterations.

    Args:
      train: (texts, labels) to fit.
      texts: the texts whose labels are predicted.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    classifier = make_pipeline(vectorizer, LogisticRegression(C=10.0, max_iter=1000))
    classifier.fit(*train)
    return [str(label) for label in classifier.predict(texts)]


def tfidf_accuracy(
    train: tuple[Sequence[str], Sequence[str]], dev: tuple[Sequence[str], Sequence[str]]
) -> float:
    """Computes the accuracy on dev of `tfidf_predictions`; each argument is (texts, labels)."""
    texts, labels = dev
    predicted = tfidf_predictions(train, texts)
    return sum(a == b for a, b in zip(predicted, labels, strict=True)) / len(labels)


def pair_features(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns features [n, 4 D] of pairs of vectors [n, D]: u, v, |u - v|, u * v (SentEval)."""
    return np.concatenate([first, second, np.abs(first - second), first * second], axis=1)


def nearest_class_mean(
    train_vectors: np.ndarray, train_labels: Sequence[str], vectors: np.ndarray
) -> list[str]:
    """Predicts the class whose mean training vector has the largest cosine with each vector."""
    labels = sorted(set(train_labels))
    owners = np.array(train_labels)
    normalized = normalize_vectors(train_vectors)
    means = np.stack([normalized[owners == label].mean(axis=0) for label in labels])
    scores = normalize_vectors(vectors) @ normalize_vectors(means).T
    return [labels[index] for index in scores.argmax(axis=1)]


def logistic_regression(
    train_vectors: np.ndarray, train_labels: Sequence[str], vectors: np.ndarray
) -> list[str]:
    """Predicts with logistic regression on standardized features (scikit-learn's defaults)."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    classifier.fit(train_vectors, list(train_labels))
    return [str(label) for label in classifier.predict(vectors)]


def fit_logistic_regression(
    vectors: np.ndarray, labels: Sequence[str], class_names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Fits logistic regression to vectors [n, E], with scikit-learn's defaults.

    Returns:
      (weight, float32 [C, E], and bias, float32 [C], in the order of `class_names`), which all
      have examples. Of two classes, the first one has the logit 0.
    """
    from sklearn.linear_model import LogisticRegression

    class_ids = [class_names.index(label) for label in labels]
    model = LogisticRegression().fit(vectors, class_ids)
    weight, bias = model.coef_.astype(np.float32), model.intercept_.astype(np.float32)
    if len(class_names) == 2:
        return np.concatenate([np.zeros_like(weight), weight]), np.array([0, bias[0]], np.float32)
    return weight, bias
