"""Compares intervals, tests and power laws with SciPy and with planted values."""

import itertools

import numpy as np
import pytest
from scipy import stats

from bert_jax.apps.studies.sheets.statistics import (
    compare,
    estimate,
    fit_power_law,
)


@pytest.fixture(name="rng")
def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_interval_over_seeds_is_students(rng):
    values = dict(enumerate(rng.normal(size=5)))
    found = estimate(values, {})
    numbers = list(values.values())
    expected = stats.t.interval(0.95, 4, loc=np.mean(numbers), scale=stats.sem(numbers))
    np.testing.assert_allclose(np.array([found.low, found.high], float), expected, rtol=1e-12)
    assert found.mean == pytest.approx(np.mean(numbers))
    assert found.over == "seeds"


def test_interval_of_one_seed_is_over_examples(rng):
    outcomes = rng.integers(0, 2, 400).astype(float).tolist()
    found = estimate({0: float(np.mean(outcomes))}, {0: outcomes})
    expected = stats.norm.interval(0.95, loc=np.mean(outcomes), scale=stats.sem(outcomes))
    np.testing.assert_allclose(np.array([found.low, found.high], float), expected, rtol=1e-9)
    assert found.over == "examples"
    assert estimate({0: 0.5}, {})[1:] == (None, None, None)


def test_test_over_seeds_is_paired_t(rng):
    first, second = rng.normal(size=(2, 4))
    found = compare(dict(enumerate(first)), dict(enumerate(second)), {}, {})
    assert found is not None
    assert found.p_value == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert found.difference == pytest.approx(np.mean(first - second))
    # Only seeds that both have are paired.
    assert compare({0: 1.0, 1: 2.0}, {1: 1.0, 2: 3.0}, {}, {}) is None


def test_equal_systems_do_not_differ():
    found = compare({0: 0.5, 1: 0.6}, {0: 0.5, 1: 0.6}, {}, {})
    assert found is not None and found.p_value == 1.0
    outcomes = {0: [1.0, 0.0, 1.0]}
    found = compare({0: 2 / 3}, {0: 2 / 3}, outcomes, outcomes)
    assert found is not None and found.p_value == 1.0


def test_test_of_signs_is_close_to_all_signs(rng):
    first, second = rng.integers(0, 2, (2, 24)).astype(float)
    differences = first - second
    nonzero = differences[differences != 0]
    signs = np.array(list(itertools.product([-1, 1], repeat=len(nonzero))))
    exact = (abs(signs @ nonzero) >= abs(nonzero.sum())).mean()
    found = compare({0: 0.0}, {0: 0.0}, {0: first.tolist()}, {0: second.tolist()})
    assert found is not None
    assert found.over == "examples"
    # 9,999 draws: five standard errors of a fraction are at most .025.
    assert found.p_value == pytest.approx(exact, abs=0.025)


def test_seeds_are_averaged_before_the_test_over_examples():
    first = {0: [1.0] * 30, 1: [0.0] * 30}
    second = {0: [0.0] * 30, 1: [1.0] * 30}
    found = compare({0: 1.0, 1: 0.0}, {0: 0.0, 1: 1.0}, first, second)
    assert found is not None and found.p_value == 1.0


def test_other_examples_are_paired_by_seed():
    found = compare({0: 0.5, 1: 0.7}, {0: 0.4, 1: 0.5}, {0: [1.0]}, {0: [1.0, 0.0]})
    assert found is not None and found.over == "seeds"


def test_planted_power_law_is_found():
    x = np.array([1e9, 1e10, 1e11])
    law = fit_power_law([(a, 7.5 * a**-0.05) for a in x])
    assert law.x_0 == 1e9
    assert law.y_0 == pytest.approx(7.5 * 1e9**-0.05)
    assert law.exponent == pytest.approx(-0.05)
    assert law(1e12) == pytest.approx(7.5 * 1e12**-0.05)
