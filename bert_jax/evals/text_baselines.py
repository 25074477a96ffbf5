"""Computes baselines for text classification: the most common class, and TF-IDF features."""

from collections import Counter
from collections.abc import Sequence


def majority_accuracy(train: Sequence[str], dev: Sequence[str]) -> float:
    """Computes the accuracy on dev of always predicting the most common label of train."""
    (most_common_label, _), *_ = Counter(train).most_common(1)
    return sum(label == most_common_label for label in dev) / len(dev)


def tfidf_accuracy(
    train: tuple[Sequence[str], Sequence[str]], dev: tuple[Sequence[str], Sequence[str]]
) -> float:
    """Computes the accuracy on dev of logistic regression on TF-IDF features of words and bigrams.

    Each argument is (texts, labels). Settings are scikit-learn's defaults except for sublinear
    counts, C = 10 and the number of iterations.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    classifier = make_pipeline(vectorizer, LogisticRegression(C=10.0, max_iter=1000))
    classifier.fit(*train)
    return float(classifier.score(*dev))
