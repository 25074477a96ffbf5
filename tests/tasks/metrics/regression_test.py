"""Compares regression metrics with scipy, and with their definitions in NumPy."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from bert_jax.errors import UserError
from bert_jax.tasks.metrics.regression import regression_metrics


def ranks(values: np.ndarray) -> np.ndarray:
    """Computes ranks by comparing all pairs; equal values get their mean rank."""
    below = (values[:, None] > values).sum(axis=1)
    equal = (values[:, None] == values).sum(axis=1)
    return below + (equal + 1) / 2


@pytest.mark.parametrize("seed", range(3))
def test_equal_to_scipy_and_definitions(seed: int):
    random = np.random.default_rng(seed)
    targets = random.integers(0, 6, 83) / 2  # with ties
    values = targets + random.normal(size=83)
    values[::7] = values[0]
    found = regression_metrics(targets, values.astype(np.float32))
    values = values.astype(np.float32).astype(np.float64)
    assert found == pytest.approx(
        {
            "pearson": stats.pearsonr(targets, values)[0],
            "spearman": stats.spearmanr(targets, values)[0],
            "mse": metrics.mean_squared_error(targets, values),
        },
        abs=1e-9,
    )
    assert found["pearson"] == pytest.approx(np.corrcoef(targets, values)[0, 1], abs=1e-12)
    assert found["spearman"] == pytest.approx(
        np.corrcoef(ranks(targets), ranks(values))[0, 1], abs=1e-12
    )


def test_scores_of_sts_b(shared: Path):
    with open(shared / "glue/STS-B/dev.tsv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    targets = np.array([float(row["score"]) for row in rows])
    noisy = targets + np.random.default_rng(0).normal(size=len(targets))
    found = regression_metrics(targets, noisy)
    assert found["pearson"] == pytest.approx(stats.pearsonr(targets, noisy)[0], abs=1e-9)
    assert found["spearman"] == pytest.approx(stats.spearmanr(targets, noisy)[0], abs=1e-9)
    assert regression_metrics(targets, 3 * targets - 1)["pearson"] == pytest.approx(1)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e9])
def test_constant_values_have_no_correlation_and_no_warning(constant: float):
    varied, flat = np.arange(5.0), np.full(5, constant)
    for targets, values in ((varied, flat), (flat, varied), (flat, flat)):
        found = regression_metrics(targets, values)
        assert found["pearson"] == found["spearman"] == 0.0
    assert regression_metrics(varied, flat + 1e-16)["pearson"] == 0.0
    assert regression_metrics(np.ones(1), np.zeros(1)) == {"pearson": 0, "spearman": 0, "mse": 1}


@pytest.mark.parametrize(
    "targets, values, message",
    [
        ([], [], "no examples with labels"),
        ([1.0, 2.0], [1.0, np.nan], "the predictions hold nan, first at 1"),
        ([np.inf, 2.0], [1.0, 2.0], "the labels hold inf, first at 0"),
    ],
)
def test_invalid_inputs_are_rejected(targets, values, message):
    with pytest.raises(UserError, match=message):
        regression_metrics(np.array(targets), np.array(values))
