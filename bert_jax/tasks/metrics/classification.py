"""Computes metrics of classification, and tables for reports.

The ROC curve and the per-class table come from scikit-learn. Metrics that depend on the confusion
matrix only are computed from the matrix: scikit-learn starts from examples, with which a bootstrap
would take minutes. Tests compare them with scikit-learn. The calibration error is defined as in Guo
et al. 2017, section 2.

scikit-learn takes a second to import, so it is imported where it is used: prediction imports this
module, too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax

from bert_jax.errors import UserError
from bert_jax.models.heads.config import DEFAULT_THRESHOLD
from bert_jax.tasks.metrics.validate_inputs import (
    require_finite,
    require_matching_counts,
    require_valid_class_ids,
)

CALIBRATION_BINS = 15

PREDICTION = np.dtype([("logit", np.float64), ("threshold", np.float64)])
"""The dtype of the prediction for one label: its logit, and the probability above which it is
predicted. Both stand together, so that metrics, reports and output files use the same threshold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassScores:
    """Holds the scores of one class; a ratio with the denominator 0 is 0."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int  # number of examples with this label


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationBin:
    """Describes the predictions with confidence in (low, high]; means of an empty bin are 0."""

    low: float
    high: float
    count: int
    confidence: float  # mean probability of the predicted class
    accuracy: float


def with_thresholds(logits: np.ndarray, thresholds: Sequence[float]) -> np.ndarray:
    """Returns predictions, `PREDICTION` [n, C], from logits [n, C] and one threshold a label."""
    predictions = np.empty(logits.shape, PREDICTION)
    predictions["logit"], predictions["threshold"] = logits, thresholds
    return predictions


def logits_of(predictions: np.ndarray) -> np.ndarray:
    """Returns the logits of predictions, which are logits or `PREDICTION`, as float64."""
    logits = predictions["logit"] if predictions.dtype.names else predictions
    return logits.astype(np.float64)


def classification_metrics(
    labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str]
) -> dict[str, float]:
    """Computes all metrics of a classifier.

    Args:
      labels: class ids, int [n].
      predictions: logits, float [n, C]; or `PREDICTION` [n, 2] for two classes with thresholds.
      class_names: names of the C classes in the order of their ids.

    Returns:
      accuracy      fraction of examples with the right class
      f1            F1 of class 1; only if C is 2
      f1_macro      mean F1 of the classes that occur in labels or predictions
      matthews      Matthews correlation (Gorodkin 2004 for C > 2); 0 if labels or predictions are
                    constant
      roc_auc       area under the ROC curve, mean of one-vs-rest if C > 2; left out if a class does
                    not occur in the labels
      calibration_error   expected calibration error over 15 bins of equal width
      brier_score   mean over examples of the squared errors of all C probabilities, added (Brier
                    1950); from 0 to 2
      loss          mean cross-entropy in nats
      accuracy_at_0.5, f1_at_0.5, f1_macro_at_0.5, matthews_at_0.5   for predictions with
                    thresholds: the class with the highest logit

    Raises:
      UserError: there are no examples, logits are not finite, or labels or names do not fit them.
    """
    labels, predictions = _check_inputs(labels, predictions, class_names)
    logits, scores = logits_of(predictions), {}
    by_suffix = {"": predictions} | ({"_at_0.5": logits} if predictions.dtype.names else {})
    for suffix, each in by_suffix.items():
        matrix = _matrix_from_cells(_confusion_cells(labels, each), len(class_names))
        found = {name: score(matrix) for name, score in CONFUSION_MATRIX_METRICS.items()}
        scores |= {f"{name}{suffix}": value for name, value in found.items()}
    scores |= {name: score(labels, logits) for name, score in LOGIT_METRICS.items()}
    return {name: value for name, value in scores.items() if not np.isnan(value)}


def per_class_table(
    labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str]
) -> tuple[ClassScores, ...]:
    """Computes precision, recall, F1 and support of each of the C classes, in order."""
    from sklearn import metrics

    labels, predictions = _check_inputs(labels, predictions, class_names)
    zero_division: Any = 0  # typed as a string in scikit-learn, which accepts 0
    columns: Any = metrics.precision_recall_fscore_support(
        labels,
        predicted_classes(predictions),
        labels=range(len(class_names)),
        zero_division=zero_division,
    )
    return tuple(
        ClassScores(
            name=name,
            precision=float(precision),
            recall=float(recall),
            f1=float(f1),
            support=int(support),
        )
        for name, precision, recall, f1, support in zip(class_names, *columns, strict=True)
    )


def confusion_matrix(
    labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str]
) -> np.ndarray:
    """Computes the confusion matrix, int64 [C, C]: rows are labels, columns are predictions."""
    labels, predictions = _check_inputs(labels, predictions, class_names)
    return _matrix_from_cells(_confusion_cells(labels, predictions), len(class_names))


def metric_for_resampling(
    metric: str, labels: np.ndarray, predictions: np.ndarray
) -> tuple[tuple[np.ndarray, ...], Callable[..., float]]:
    """Returns (arrays, score) such that score(*arrays) is the metric, for bootstrapping.

    Metrics of the confusion matrix need one number for each example, so resampling is cheap.

    Args:
      metric: one of `classification_metrics`.
      labels, predictions: validated arguments of `classification_metrics`.
    """
    num_classes = predictions.shape[1]
    if metric in CONFUSION_MATRIX_METRICS:
        score = CONFUSION_MATRIX_METRICS[metric]
        return (_confusion_cells(labels, predictions),), lambda cells: score(
            _matrix_from_cells(cells, num_classes)
        )
    return (labels, logits_of(predictions)), LOGIT_METRICS[metric]


def calibration_bins(labels: np.ndarray, logits: np.ndarray) -> tuple[CalibrationBin, ...]:
    """Computes 15 bins of confidence, for the calibration error and for reliability diagrams."""
    probabilities = softmax(logits, axis=1)
    confidence = probabilities.max(axis=1)
    is_correct = (probabilities.argmax(axis=1) == labels).astype(np.float64)
    # Bins are open at the low end as in Guo et al., so a confidence of exactly 0 is clipped into
    # the first one.
    edges = np.linspace(0, 1, CALIBRATION_BINS + 1)
    bins = np.clip(np.searchsorted(edges, confidence) - 1, 0, CALIBRATION_BINS - 1)
    counts = np.bincount(bins, minlength=CALIBRATION_BINS)
    divisors = np.maximum(counts, 1)
    confidences = np.bincount(bins, confidence, CALIBRATION_BINS) / divisors
    accuracies = np.bincount(bins, is_correct, CALIBRATION_BINS) / divisors
    return tuple(
        CalibrationBin(
            low=float(edges[b]),
            high=float(edges[b + 1]),
            count=int(counts[b]),
            confidence=float(confidences[b]),
            accuracy=float(accuracies[b]),
        )
        for b in range(CALIBRATION_BINS)
    )


def calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """Computes the expected calibration error: |accuracy - confidence|, weighted by count."""
    gaps = sum(b.count * abs(b.accuracy - b.confidence) for b in bins)
    return gaps / sum(b.count for b in bins)


def multiple_choice_metrics(labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """Computes accuracy and loss of multiple choice, from int [n] and logits float [n, A].

    An example with fewer than A choices has the logit -inf for missing ones.

    Raises:
      UserError: there are no examples, a logit is NaN, or a label is not one of the choices.
    """
    labels, logits = np.asarray(labels), np.asarray(logits, np.float64)
    require_matching_counts("examples", len(labels), len(logits))
    require_finite("the logits", logits, allow_infinite=True)
    require_valid_class_ids(labels, logits.shape[1], "choices")
    matrix = _matrix_from_cells(_confusion_cells(labels, logits), logits.shape[1])
    return {"accuracy": _accuracy(matrix), "loss": mean_loss(labels, logits)}


def predicted_classes(predictions: np.ndarray) -> np.ndarray:
    """Returns int64 [...]: the first class with the highest logit, or above its threshold."""
    if predictions.dtype.names is None:
        return np.argmax(predictions, axis=-1)
    # The thresholds of two classes have the sum 1, so one of both is above its own.
    return np.argmax(softmax(predictions["logit"], axis=-1) - predictions["threshold"], axis=-1)


def best_threshold(
    positives: np.ndarray, probabilities: np.ndarray, score: Callable[..., np.ndarray]
) -> float:
    """Returns the threshold with the highest score; 0.5 without a positive example.

    A threshold is halfway between two neighboring probabilities, so that rounding does not change a
    decision. Among thresholds with the same score, the nearest to 0.5 is taken.

    Args:
      positives, probabilities: bool and float [n], of one label.
      score: maps the counts (true positives, false positives, false negatives, true negatives) of
        several thresholds, int [t] each, to scores, float [t].
    """
    if not positives.any():
        return DEFAULT_THRESHOLD
    order = np.argsort(-probabilities, kind="stable")
    descending, hits = probabilities[order], np.cumsum(positives[order])
    lower = np.append(descending[1:], 0.0)
    # A threshold cannot separate equal probabilities. The one below the lowest probability
    # predicts the label for all texts.
    ends = np.flatnonzero((descending != lower) & ((descending + lower) / 2 < descending))
    hits, false_alarms, num_positive = hits[ends], ends + 1 - hits[ends], hits[-1]
    true_negatives = len(positives) - num_positive - false_alarms
    scores = score(hits, false_alarms, num_positive - hits, true_negatives)
    candidates = ((descending + lower) / 2)[ends][scores == scores.max()]
    return float(candidates[np.argmin(np.abs(candidates - DEFAULT_THRESHOLD))])


def best_thresholds_of_two(
    metric: str, labels: np.ndarray, logits: np.ndarray
) -> tuple[float, float]:
    """Returns the thresholds of two classes with the highest value of a `THRESHOLD_METRICS`.

    The class 1 is predicted if its probability is above its threshold, otherwise the class 0.
    """
    metric_of = CONFUSION_MATRIX_METRICS[metric]

    def score(*counts: np.ndarray) -> np.ndarray:
        rows = np.stack(counts, axis=1)
        return np.array([metric_of(np.array([[tn, fp], [fn, tp]])) for tp, fp, fn, tn in rows])

    threshold = best_threshold(labels == 1, softmax(logits, axis=1)[:, 1], score)
    return 1 - threshold, threshold


def _confusion_cells(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Returns int [n]: the cell of the flattened confusion matrix of each example."""
    # One number for each example: a bootstrap resamples these instead of rows of logits.
    return labels * predictions.shape[1] + predicted_classes(predictions)


def _matrix_from_cells(cells: np.ndarray, num_classes: int) -> np.ndarray:
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def _accuracy(matrix: np.ndarray) -> float:
    return float(np.trace(matrix) / matrix.sum())


def _f1(matrix: np.ndarray) -> float:
    return float(_f1_by_class(matrix)[1]) if len(matrix) == 2 else math.nan


def _f1_macro(matrix: np.ndarray) -> float:
    # As in scikit-learn, a class that is neither a label nor a prediction does not lower the mean.
    occurs = matrix.sum(axis=0) + matrix.sum(axis=1) > 0
    return float(_f1_by_class(matrix)[occurs].mean())


def _f1_by_class(matrix: np.ndarray) -> np.ndarray:
    """Returns float64 [C]: 2 correct / (labels + predictions), 0 for a class that never occurs."""
    occurrences = matrix.sum(axis=0) + matrix.sum(axis=1)
    return 2 * np.diag(matrix) / np.maximum(occurrences, 1)


def _matthews(matrix: np.ndarray) -> float:
    num_examples = float(matrix.sum())
    label_fractions, predicted_fractions = (
        matrix.sum(axis=1) / num_examples,
        matrix.sum(axis=0) / num_examples,
    )
    variance_product = (1 - label_fractions @ label_fractions) * (
        1 - predicted_fractions @ predicted_fractions
    )
    # The denominator would be 0; scikit-learn returns 0 as well.
    if np.count_nonzero(label_fractions) < 2 or np.count_nonzero(predicted_fractions) < 2:
        return 0.0
    return float(
        (np.trace(matrix) / num_examples - label_fractions @ predicted_fractions)
        / np.sqrt(variance_product)
    )


def _roc_auc(labels: np.ndarray, logits: np.ndarray) -> float:
    from sklearn import metrics

    if len(np.unique(labels)) < logits.shape[1]:
        return float("nan")
    if logits.shape[1] == 2:
        # The curve depends on the order of the scores only, and the softmax grows with this
        # difference.
        return float(metrics.roc_auc_score(labels, logits[:, 1] - logits[:, 0]))
    return float(metrics.roc_auc_score(labels, softmax(logits, axis=1), multi_class="ovr"))


def _calibration_error(labels: np.ndarray, logits: np.ndarray) -> float:
    return calibration_error(calibration_bins(labels, logits))


def _brier_score(labels: np.ndarray, logits: np.ndarray) -> float:
    errors = softmax(logits, axis=1) - np.eye(logits.shape[1])[labels]
    return float((errors**2).sum(axis=1).mean())


def mean_loss(labels: np.ndarray, logits: np.ndarray) -> float:
    """Returns the mean cross-entropy in nats, from class ids [n] and logits [n, C]."""
    return -float(log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean())


# Metric -> function of a confusion matrix, int [C, C].
CONFUSION_MATRIX_METRICS: dict[str, Callable[[np.ndarray], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "f1_macro": _f1_macro,
    "matthews": _matthews,
}
THRESHOLD_METRICS = ("f1", "f1_macro", "matthews")
"""Metrics that another threshold than 0.5 can raise although accuracy falls."""
# Metric -> function of labels int [n] and logits float64 [n, C]; NaN where it is undefined.
LOGIT_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "roc_auc": _roc_auc,
    "calibration_error": _calibration_error,
    "brier_score": _brier_score,
    "loss": mean_loss,
}


CALIBRATION_METRICS = ("loss", "brier_score", "calibration_error")
"""Metrics of the probabilities, which a temperature changes; a lower value is better."""


def _check_inputs(
    labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    logits = logits_of(predictions)
    require_matching_counts("examples", len(labels), len(logits))
    class_list = ", ".join(class_names)
    if logits.ndim != 2 or logits.shape[1] != len(class_names):
        raise UserError(
            f"logits of shape {list(logits.shape)} for {len(class_names)} classes ({class_list}): "
            "the head of the model was made for another set of labels"
        )
    require_finite("the logits", logits)
    require_valid_class_ids(labels, len(class_names), class_list)
    return labels, predictions if predictions.dtype.names else logits
