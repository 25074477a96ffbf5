"""How sure a number is: bootstrap intervals over examples, and the spread over seeds."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.evals.validate_inputs import require_matching_counts


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedSummary:
    """One metric over runs that differ in their seed only."""

    runs: int
    median: float
    mean: float
    std: float | None  # of the sample (n - 1); None for a single run
    best: float  # the greatest


def bootstrap_interval(
    metric: Callable[..., float],
    *arrays: Sequence[Any] | np.ndarray,
    n_resamples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """A 95 % interval of a metric: percentiles over resampled examples (Efron 1979).

    It says how the number would vary with other examples like these; another training run is not
    in it.

    Args:
      metric: takes resampled rows, one argument for each of `rows`. A resample on which it is NaN
        (undefined) is left out.
      rows: arrays or sequences with one entry for each of n examples, resampled together.
      samples: number of resamples.
      seed: of the resampling; the same seed gives the same interval.

    Returns:
      (low, high).

    Raises:
      UserError: no examples, or the metric is undefined on every resample.
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
    defined = defined[~np.isnan(defined)]
    if not len(defined):
        raise UserError(f"the metric is undefined on all resamples of these {count} examples")
    low, high = np.percentile(defined, [2.5, 97.5])
    return float(low), float(high)


def summarize_seeds(values: Sequence[float]) -> SeedSummary:
    """Median, mean, standard deviation and best of a metric of which more is better.

    Raises:
      UserError: there are no values.
    """
    if not values:
        raise UserError("no finished runs to summarise")
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
