"""Metrics of regression: correlations by scipy, and the mean squared error.

`scipy.stats` takes a second to import, so only the correlations do: predicting needs this file too.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from bert_jax.evals.validate_inputs import require_finite, require_matching_counts

# Below this share of the mean, what varies is rounding; scipy warns from 1e-13 on.
CONSTANT_TOLERANCE = 1e-12


def regression_metrics(targets: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """pearson, spearman and mse of predictions, both float [n].

    A side that does not vary, where correlation is undefined, gives 0.0.

    Raises:
      UserError: no rows, or numbers that are not finite.
    """
    targets, predictions = np.asarray(targets, np.float64), np.asarray(predictions, np.float64)
    require_matching_counts("examples", len(targets), len(predictions))
    require_finite("the labels", targets)
    require_finite("the predictions", predictions)
    return {name: score(targets, predictions) for name, score in REGRESSION_METRICS.items()}


def _pearson(targets: np.ndarray, predictions: np.ndarray) -> float:
    from scipy import stats

    if _is_constant(targets) or _is_constant(predictions):
        return 0.0
    correlation: Any = stats.pearsonr(targets, predictions)[0]
    return float(correlation)


def _spearman(targets: np.ndarray, predictions: np.ndarray) -> float:
    from scipy import stats

    if np.ptp(targets) == 0 or np.ptp(predictions) == 0:
        return 0.0
    correlation: Any = stats.spearmanr(targets, predictions)[0]
    return float(correlation)


def _mse(targets: np.ndarray, predictions: np.ndarray) -> float:
    return float(np.mean((targets - predictions) ** 2))


def _is_constant(values: np.ndarray) -> bool:
    mean = values.mean()
    return bool(np.linalg.norm(values - mean) <= CONSTANT_TOLERANCE * abs(mean))


# Metric -> function of checked targets and predictions, both float64 [n].
REGRESSION_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "pearson": _pearson,
    "spearman": _spearman,
    "mse": _mse,
}
