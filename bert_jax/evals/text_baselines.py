"""What a fine-tuned classifier must beat: the commonest class, and words counted and weighed."""

from collections import Counter
from collections.abc import Sequence


def majority_accuracy(train: Sequence[str], dev: Sequence[str]) -> float:
    """Accuracy on dev of the class that is commonest in train; both are lists of labels."""
    (most_common_label, _), *_ = Counter(train).most_common(1)
    return sum(label == most_common_label for label in dev) / len(dev)


def tfidf_accuracy(
    train: tuple[Sequence[str], Sequence[str]], dev: tuple[Sequence[str], Sequence[str]]
) -> float:
    """Accuracy on dev of a logistic regression over TF-IDF weights of words and pairs of words.

    Each argument is (texts, labels). scikit-learn's defaults, but for sublinear counts.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    classifier = make_pipeline(vectorizer, LogisticRegression(C=10.0, max_iter=1000))
    classifier.fit(*train)
    return float(classifier.score(*dev))
