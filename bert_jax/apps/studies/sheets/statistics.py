"""Computes means over seeds with intervals, paired tests, and power laws."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

from bert_jax.tasks.metrics.bootstrap import randomization_test

Over = Literal["seeds", "examples"]
CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """Holds a mean with its interval.

    Attributes:
      mean: the mean over seeds.
      low, high: the limits of a 95 % interval; None without a spread to compute it from.
      over: what the interval is over: seeds (Student's t), or the examples of one seed (normal).
    """

    mean: float
    low: float | None = None
    high: float | None = None
    over: Over | None = None


class Comparison(NamedTuple):
    """Holds a paired comparison of two systems.

    Attributes:
      difference: the mean of a system minus the mean of the reference.
      p_value: the two-sided p-value of no difference.
      over: what is paired: the examples, after the mean over seeds (a test by random signs), or the
        seeds (Student's t).
    """

    difference: float
    p_value: float
    over: Over


def estimate(values: Mapping[int, float], outcomes: Mapping[int, Sequence[float]]) -> Estimate:
    """Computes the mean over seeds and its interval.

    Args:
      values: seed -> value, at least one.
      outcomes: seed -> a number for each example, for those seeds that have them.
    """
    numbers = np.array(list(values.values()))
    mean = float(numbers.mean())
    if len(numbers) > 1:
        error, freedom, over = float(stats.sem(numbers)), len(numbers) - 1, "seeds"
    elif outcomes:
        (examples,) = outcomes.values()
        if len(examples) < 2:
            return Estimate(mean)
        error, freedom, over = float(stats.sem(examples)), np.inf, "examples"
    else:
        return Estimate(mean)
    margin = error * float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    return Estimate(mean, mean - margin, mean + margin, over)


def compare(
    values: Mapping[int, float],
    reference: Mapping[int, float],
    outcomes: Mapping[int, Sequence[float]],
    reference_outcomes: Mapping[int, Sequence[float]],
) -> Comparison | None:
    """Tests whether a system differs from the reference.

    Args:
      values, reference: seed -> value of both systems.
      outcomes, reference_outcomes: seed -> a number for each example of both systems.

    Returns:
      The comparison; None if there is nothing to pair: other examples, and fewer than two seeds
      that both have.
    """
    if outcomes and reference_outcomes:
        first, second = (
            np.mean(list(each.values()), axis=0) if len({*map(len, each.values())}) == 1 else None
            for each in (outcomes, reference_outcomes)
        )
        if first is not None and second is not None and first.shape == second.shape:
            differences = first - second
            mean = float(differences.mean())
            return Comparison(mean, randomization_test(differences), "examples")
    seeds = sorted(values.keys() & reference.keys())
    if len(seeds) < 2:
        return None
    differences = np.array([values[seed] - reference[seed] for seed in seeds])
    if np.ptp(differences) == 0:
        p_value = 1.0 if differences[0] == 0 else 0.0
    else:
        t = abs(differences.mean()) / stats.sem(differences)
        p_value = 2 * float(stats.t.sf(t, len(differences) - 1))
    return Comparison(float(differences.mean()), p_value, "seeds")


class PowerLaw(NamedTuple):
    """Holds y = y_0 (x / x_0)^exponent, fitted by least squares of the logarithms."""

    x_0: float
    y_0: float
    exponent: float

    def __call__(self, x: float) -> float:
        """Returns y at x."""
        return self.y_0 * (x / self.x_0) ** self.exponent


def fit_power_law(points: Sequence[tuple[float, float]]) -> PowerLaw:
    """Fits a power law to (x, y) points, all above 0, of at least two different x.

    x_0 is the smallest x.
    """
    x, y = np.array(points).T
    exponent, intercept = np.polyfit(np.log(x / x.min()), np.log(y), 1)
    return PowerLaw(float(x.min()), float(np.exp(intercept)), float(exponent))
