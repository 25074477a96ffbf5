"""Computes metrics of regression: correlations (SciPy) and the mean squared error.

`scipy.stats` takes a second to import, so it is imported where it is used: prediction imports this
module, too.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from bert_jax.tasks.metrics.validate_inputs import require_finite, require_matching_counts

# Variation below this fraction of the mean is rounding error; SciPy warns below 1e-13.
CONSTANT_TOLERANCE = 1e-12


def regression_metrics(targets: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """Computes pearson, spearman and mse of targets and predictions, both float [n].

    If one of them is constant, so that correlation is undefined, correlations are 0.0.

    Raises:
      UserError: there are no examples, or numbers are not finite.
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


# Metric -> function of validated targets and predictions, both float64 [n].
REGRESSION_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "pearson": _pearson,
    "spearman": _spearman,
    "mse": _mse,
}
