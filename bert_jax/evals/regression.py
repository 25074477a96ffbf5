"""Metrics of regression: correlations by scipy, and the mean squared error.

`scipy.stats` takes a second to import, so only the correlations do: predicting needs this file too.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from bert_jax.evals.checks import require_numbers, require_rows

# Below this share of the mean, what varies is rounding; scipy warns from 1e-13 on.
ROUNDING = 1e-12


def regression_metrics(targets: np.ndarray, values: np.ndarray) -> dict[str, float]:
    """pearson, spearman and mse of predictions, both float [n].

    A side that does not vary, where correlation is undefined, gives 0.0.

    Raises:
      UserError: no rows, or numbers that are not finite.
    """
    targets, values = np.asarray(targets, np.float64), np.asarray(values, np.float64)
    require_rows("examples", len(targets), len(values))
    require_numbers("the labels", targets)
    require_numbers("the predictions", values)
    return {name: score(targets, values) for name, score in SCORES.items()}


def _pearson(targets: np.ndarray, values: np.ndarray) -> float:
    from scipy import stats

    if _is_constant(targets) or _is_constant(values):
        return 0.0
    correlation: Any = stats.pearsonr(targets, values)[0]
    return float(correlation)


def _spearman(targets: np.ndarray, values: np.ndarray) -> float:
    from scipy import stats

    if np.ptp(targets) == 0 or np.ptp(values) == 0:
        return 0.0
    correlation: Any = stats.spearmanr(targets, values)[0]
    return float(correlation)


def _mse(targets: np.ndarray, values: np.ndarray) -> float:
    return float(np.mean((targets - values) ** 2))


def _is_constant(values: np.ndarray) -> bool:
    mean = values.mean()
    return bool(np.linalg.norm(values - mean) <= ROUNDING * abs(mean))


# Metric -> function of checked targets and predictions, both float64 [n].
SCORES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "pearson": _pearson,
    "spearman": _spearman,
    "mse": _mse,
}
