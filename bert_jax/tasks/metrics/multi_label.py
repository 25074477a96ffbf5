"""Computes metrics of multi-label classification, and thresholds that maximize F1.

Everything is computed from indicator matrices on NumPy, because a bootstrap with scikit-learn would
take minutes; tests compare with scikit-learn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from bert_jax.errors import UserError
from bert_jax.models.heads.config import DEFAULT_THRESHOLD
from bert_jax.tasks.metrics.classification import ClassScores, best_threshold
from bert_jax.tasks.metrics.validate_inputs import require_finite, require_matching_counts

MEAN_AVERAGE_PRECISION = "mean_average_precision"


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelScores(ClassScores):
    """Holds the scores of one label, and the threshold with which it was predicted."""

    threshold: float


def is_predicted(predictions: np.ndarray) -> np.ndarray:
    """Returns which labels are predicted, bool, from an array of `PREDICTION` of any shape."""
    return expit(predictions["logit"]) > predictions["threshold"]


def multi_label_metrics(
    references: np.ndarray, predictions: np.ndarray, names: Sequence[str]
) -> dict[str, float]:
    """Computes all metrics of a multi-label classifier.

    Args:
      references: bool [n, C], which labels a text has.
      predictions: `PREDICTION` [n, C].
      names: the C labels.

    Returns:
      mean_average_precision   mean over the labels that a text of the split has of the average
                               precision, the area under the curve of precision over recall; it
                               needs no threshold
      f1_micro                 F1 of all decisions about a text and a label
      f1_macro                 mean of the F1 of all labels; 0 for a label that no text has and
                               that is never predicted
      subset_accuracy          fraction of texts whose labels are exactly right
      f1_micro_at_0.5          F1 with the threshold 0.5 for all labels, if they have others
      f1_macro_at_0.5
      loss                     mean binary cross-entropy in nats

      As in scikit-learn, a ratio with the denominator 0 is 0.

    Raises:
      UserError: there are no examples, a logit is not finite, or the labels do not fit them.
    """
    _check_inputs(references, predictions, names)
    predicted, logits = is_predicted(predictions), predictions["logit"]
    metrics = {MEAN_AVERAGE_PRECISION: _MeanAveragePrecision(references, logits).value()}
    metrics |= {name: score(references, predicted) for name, score in DECISION_METRICS.items()}
    if (predictions["threshold"] != DEFAULT_THRESHOLD).any():
        at_default = expit(logits) > DEFAULT_THRESHOLD
        for name in ("f1_micro", "f1_macro"):
            metrics[f"{name}_at_0.5"] = DECISION_METRICS[name](references, at_default)
    metrics["loss"] = float(label_losses(references, logits).mean())
    return {name: value for name, value in metrics.items() if not np.isnan(value)}


def label_losses(references: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Returns the binary cross-entropy of each label in nats, float64, shaped like the logits."""
    return np.logaddexp(0, logits) - logits * references


def label_table(
    references: np.ndarray, predictions: np.ndarray, names: Sequence[str]
) -> tuple[LabelScores, ...]:
    """Computes precision, recall, F1, support and threshold of each label, in order."""
    _check_inputs(references, predictions, names)
    predicted = is_predicted(predictions)
    hits = (references & predicted).sum(axis=0)
    num_predicted, support = predicted.sum(axis=0), references.sum(axis=0)
    return tuple(
        LabelScores(
            name=name,
            precision=float(_ratio(hits[i], num_predicted[i])),
            recall=float(_ratio(hits[i], support[i])),
            f1=float(_ratio(2 * hits[i], num_predicted[i] + support[i])),
            support=int(support[i]),
            threshold=float(predictions["threshold"][0, i]),
        )
        for i, name in enumerate(names)
    )


def best_thresholds(references: np.ndarray, logits: np.ndarray) -> tuple[float, ...]:
    """Returns the threshold of each label with the highest F1; 0.5 for a label that no text has.

    Args:
      references: bool [n, C].
      logits: float [n, C].
    """
    probabilities = expit(logits.astype(np.float64))
    return tuple(
        best_threshold(positives, column, lambda tp, fp, fn, tn: 2 * tp / (2 * tp + fp + fn))
        for positives, column in zip(references.T, probabilities.T, strict=True)
    )


def metric_for_resampling(
    metric: str, references: np.ndarray, predictions: np.ndarray
) -> tuple[tuple[np.ndarray, ...], Callable[..., float]] | None:
    """Returns (arrays, score) such that score(*arrays) is the metric; None for other metrics."""
    if metric == MEAN_AVERAGE_PRECISION:
        # Scores are sorted once for all resamples, which are numbers of rows.
        score = _MeanAveragePrecision(references, predictions["logit"])
        return (np.arange(len(references)),), score.of_rows
    if metric in DECISION_METRICS:
        return (references, is_predicted(predictions)), DECISION_METRICS[metric]
    return None


class _MeanAveragePrecision:
    """Computes average precision as scikit-learn, on resamples of the same rows."""

    def __init__(self, references: np.ndarray, scores: np.ndarray):
        self._order = np.argsort(-scores, axis=0, kind="stable").T  # [C, n]
        ranked = np.take_along_axis(scores.T, self._order, axis=1)
        self._is_positive = np.take_along_axis(references.T, self._order, axis=1)
        # Equal scores share the precision at the last of them.
        is_end = np.append(ranked[:, 1:] != ranked[:, :-1], np.ones((len(ranked), 1), bool), axis=1)
        positions = np.where(is_end, np.arange(is_end.shape[1]), is_end.shape[1])
        self._ends = np.minimum.accumulate(positions[:, ::-1], axis=1)[:, ::-1]

    def value(self) -> float:
        """Returns the mean over labels that a row has; NaN if no row has a label."""
        return self.of_rows(np.arange(self._order.shape[1]))

    def of_rows(self, rows: np.ndarray) -> float:
        """Returns the same on rows, which may repeat."""
        counts = np.bincount(rows, minlength=self._order.shape[1])[self._order]
        hits = np.where(self._is_positive, counts, 0)
        num_hits, num_ranked = np.cumsum(hits, axis=1), np.cumsum(counts, axis=1)
        precision = num_hits / np.maximum(num_ranked, 1)
        gained = (hits * np.take_along_axis(precision, self._ends, axis=1)).sum(axis=1)
        num_positive = num_hits[:, -1]
        has_positive = num_positive > 0
        if not has_positive.any():
            return float("nan")
        return float(np.mean(gained[has_positive] / num_positive[has_positive]))


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(
        numerator, denominator, out=np.zeros(np.shape(denominator)), where=denominator > 0
    )


def _f1_micro(references: np.ndarray, predicted: np.ndarray) -> float:
    hits = (references & predicted).sum()
    return float(_ratio(2 * hits, references.sum() + predicted.sum()))


def _f1_macro(references: np.ndarray, predicted: np.ndarray) -> float:
    hits = (references & predicted).sum(axis=0)
    return float(_ratio(2 * hits, references.sum(axis=0) + predicted.sum(axis=0)).mean())


def _subset_accuracy(references: np.ndarray, predicted: np.ndarray) -> float:
    return float((references == predicted).all(axis=1).mean())


DECISION_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "f1_micro": _f1_micro,
    "f1_macro": _f1_macro,
    "subset_accuracy": _subset_accuracy,
}
"""Metrics of bool [n, C] references and decisions."""


def _check_inputs(references: np.ndarray, predictions: np.ndarray, names: Sequence[str]) -> None:
    require_matching_counts("examples", len(references), len(predictions))
    require_finite("logits", predictions["logit"])
    if references.shape != predictions.shape or references.shape[1] != len(names):
        raise UserError(
            f"the references have {references.shape[1]} labels and the predictions "
            f"{predictions.shape[1]}, but the model has {len(names)} ({', '.join(names)}): its "
            "labels and those of the data differ"
        )
