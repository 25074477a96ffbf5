"""Computes intervals over examples, paired tests, and statistics over seeds."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.tasks.metrics.validate_inputs import require_matching_counts

_FLIPS = 9999


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedSummary:
    """Holds statistics of one metric over runs that only differ in their seed."""

    runs: int
    median: float
    mean: float
    std: float | None  # sample standard deviation (n - 1); None for a single run
    best: float  # the maximum


def bootstrap_interval(
    metric: Callable[..., float],
    *arrays: Sequence[Any] | np.ndarray,
    n_resamples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Computes a 95 % bootstrap interval of a metric: percentiles over resamples (Efron 1979).

    The interval shows how the metric would vary with other examples from the same distribution. It
    does not include the variation between training runs.

    Args:
      metric: a function of resampled arrays, one argument for each of `arrays`. Resamples on which
        it is NaN (undefined) are left out.
      arrays: arrays or sequences with one entry for each of n examples, resampled together.
      n_resamples: number of resamples.
      seed: seed of the resampling; equal seeds give equal intervals.

    Returns:
      (low, high).

    Raises:
      UserError: there are no examples, or the metric is undefined on every resample.
    """
    count = len(arrays[0])
    for other in arrays:
        require_matching_counts("examples", count, len(other))
    generator = np.random.default_rng(seed)
    values = []
    for _ in range(n_resamples):
        indices = generator.integers(0, count, count)
        values.append(metric(*(_take_indices(array, indices) for array in arrays)))
    defined = np.array(values, np.float64)
    # A resample may lack a class, which leaves metrics such as the area under the ROC curve
    # undefined.
    defined = defined[~np.isnan(defined)]
    if not len(defined):
        raise UserError(f"the metric is undefined on all resamples of these {count} examples")
    low, high = np.percentile(defined, [2.5, 97.5])
    return float(low), float(high)


def randomization_test(differences: np.ndarray) -> float:
    """Returns the two-sided p-value of a mean of 0 under random signs (Fisher's randomization).

    Args:
      differences: float [n], of two systems on each example or query.
    """
    generator = np.random.default_rng(0)
    nonzero = differences[differences != 0]
    if not nonzero.size:
        return 1.0
    observed = abs(nonzero.sum()) * (1 - 1e-12)  # sums in another order differ in the last bits
    extreme = 0
    for start in range(0, _FLIPS, 500):
        signs = generator.choice([-1.0, 1.0], size=(min(500, _FLIPS - start), nonzero.size))
        extreme += int((abs(signs @ nonzero) >= observed).sum())
    return (extreme + 1) / (_FLIPS + 1)


def summarize_seeds(values: Sequence[float]) -> SeedSummary:
    """Computes median, mean, standard deviation and maximum of a metric over seeds.

    Raises:
      UserError: there are no values.
    """
    if not values:
        raise UserError("there are no finished runs to summarize")
    return SeedSummary(
        runs=len(values),
        median=statistics.median(values),
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else None,
        best=max(values),
    )


def _take_indices(values: Sequence[Any] | np.ndarray, indices: np.ndarray) -> Any:
    return (
        values[indices] if isinstance(values, np.ndarray) else [values[index] for index in indices]
    )
