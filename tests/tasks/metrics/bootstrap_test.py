"""Compares bootstrap intervals with normal theory, and summaries over seeds with NumPy."""

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.metrics.bootstrap import bootstrap_interval, summarize_seeds


def test_interval_of_the_mean_equals_normal_theory():
    rows = np.random.default_rng(0).normal(2, 3, 400)
    low, high = bootstrap_interval(np.mean, rows, n_resamples=4000)
    error = rows.std() / np.sqrt(len(rows))
    assert low == pytest.approx(rows.mean() - 1.96 * error, abs=0.1 * error)
    assert high == pytest.approx(rows.mean() + 1.96 * error, abs=0.1 * error)


def test_intervals_cover_the_true_value_in_95_percent():
    random = np.random.default_rng(1)
    inside = 0
    for seed in range(200):
        rows = random.random(150) < 0.7
        low, high = bootstrap_interval(np.mean, rows, n_resamples=300, seed=seed)
        inside += low <= 0.7 <= high
    # 190 expected; three standard deviations are 9.
    assert 181 <= inside <= 199


def test_examples_are_resampled_together_and_deterministically():
    values = np.random.default_rng(2).normal(size=50)
    labels = [f"row {place}" for place in range(50)]
    seen: list[set[tuple[str, float]]] = []

    def metric(names: list[str], numbers: np.ndarray) -> float:
        seen.append(set(zip(names, numbers.tolist(), strict=True)))
        return float(numbers.mean())

    first = bootstrap_interval(metric, labels, values, n_resamples=20, seed=3)
    assert all(pairs < set(zip(labels, values.tolist(), strict=True)) for pairs in seen)
    assert first == bootstrap_interval(metric, labels, values, n_resamples=20, seed=3)
    assert first != bootstrap_interval(metric, labels, values, n_resamples=20, seed=4)


def test_undefined_resamples_are_excluded():
    def either(rows: np.ndarray) -> float:
        return 1.0 if rows.any() else float("nan")

    assert bootstrap_interval(either, np.array([0, 1])) == (1, 1)
    with pytest.raises(UserError, match="undefined on all resamples of these 2 examples"):
        bootstrap_interval(either, np.zeros(2))
    with pytest.raises(UserError, match="no examples"):
        bootstrap_interval(np.mean, np.zeros(0))
    with pytest.raises(ValueError, match="examples do not pair up: 2 and 3"):
        bootstrap_interval(either, np.zeros(2), np.zeros(3))


def test_summary_over_seeds():
    values = [0.71, 0.66, 0.69, 0.73]
    summary = summarize_seeds(values)
    assert summary.runs == 4 and summary.best == 0.73
    assert summary.mean == pytest.approx(np.mean(values))
    assert summary.median == pytest.approx(np.median(values))
    assert summary.std == pytest.approx(np.std(values, ddof=1))
    assert summarize_seeds([0.5]).std is None and summarize_seeds([0.5]).median == 0.5
    with pytest.raises(UserError, match="no finished runs"):
        summarize_seeds([])
