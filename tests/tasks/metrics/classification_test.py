"""Compares classification metrics with scikit-learn, and with loops over their definitions."""

import csv
import math
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from bert_jax.errors import UserError
from bert_jax.tasks.metrics.classification import (
    calibration_bins,
    classification_metrics,
    confusion_matrix,
    multiple_choice_metrics,
    per_class_table,
)

NAMES = tuple("abcdefg")


def random_case(classes: int, seed: int, rows: int = 157) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels of unequal frequency, and logits that are correlated with them."""
    random = np.random.default_rng(seed)
    labels = random.choice(classes, rows, p=random.dirichlet(np.full(classes, 2.0)))
    logits = random.normal(size=(rows, classes)) + 1.5 * np.eye(classes)[labels]
    return labels, logits


def softmax(row: list[float]) -> list[float]:
    powers = [math.exp(value - max(row)) for value in row]
    return [power / sum(powers) for power in powers]


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("seed", range(3))
def test_equal_to_scikit_learn(classes: int, seed: int):
    labels, logits = random_case(classes, seed)
    predicted = logits.argmax(axis=1)
    shares = np.array([softmax(row) for row in logits.tolist()])
    binary = {"f1": metrics.f1_score(labels, predicted)} if classes == 2 else {}
    if classes == 2:
        roc_auc = metrics.roc_auc_score(labels, shares[:, 1])
    else:
        roc_auc = metrics.roc_auc_score(labels, shares, multi_class="ovr")
    found = classification_metrics(labels, logits, NAMES[:classes])
    assert found.pop("calibration_error") == pytest.approx(
        expected_calibration_error(labels, shares), abs=1e-12
    )
    assert found == pytest.approx(
        {
            "accuracy": metrics.accuracy_score(labels, predicted),
            "f1_macro": metrics.f1_score(labels, predicted, average="macro"),
            "matthews": metrics.matthews_corrcoef(labels, predicted),
            "roc_auc": roc_auc,
            "loss": metrics.log_loss(labels, shares, labels=range(classes)),
            "brier_score": ((shares - np.eye(classes)[labels]) ** 2).sum(axis=1).mean(),
            **binary,
        },
        abs=1e-9,
    )


few_rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6).map(
    np.array
)


@settings(deadline=None)
@given(few_rows)
def test_equal_to_scikit_learn_where_classes_are_missing(rows: np.ndarray):
    labels, predicted = rows.T
    found = classification_metrics(labels, np.eye(4)[predicted], NAMES[:4])
    zero: Any = 0
    expected = metrics.f1_score(labels, predicted, average="macro", zero_division=zero)
    assert found["f1_macro"] == pytest.approx(expected, abs=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns about a single label and returns 0
        expected = metrics.matthews_corrcoef(labels, predicted)
    assert found["matthews"] == pytest.approx(expected, abs=1e-9)


def expected_calibration_error(labels: np.ndarray, shares: np.ndarray) -> float:
    """Computes equation 3 of Guo et al. 2017, bin by bin."""
    confidence, right = shares.max(axis=1), shares.argmax(axis=1) == labels
    error = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            gap = abs(right[inside].mean() - confidence[inside].mean())
            error += inside.mean() * gap
    return error


def test_equal_to_definitions_by_counting():
    labels, logits = random_case(2, seed=9)
    cells = Counter(zip(labels.tolist(), logits.argmax(axis=1).tolist(), strict=True))
    hit, false, miss, reject = cells[1, 1], cells[0, 1], cells[1, 0], cells[0, 0]
    edges = (hit + false) * (hit + miss) * (reject + false) * (reject + miss)
    gaps = logits[:, 1] - logits[:, 0]
    pairs = [
        (a > b) + (a == b) / 2 for a in gaps[labels == 1] for b in gaps[labels == 0]
    ]  # the Mann-Whitney statistic is the area under the curve
    found = classification_metrics(labels, logits, ["no", "yes"])
    assert found["accuracy"] == pytest.approx((hit + reject) / len(labels))
    assert found["f1"] == pytest.approx(2 * hit / (2 * hit + false + miss))
    assert found["matthews"] == pytest.approx((hit * reject - false * miss) / math.sqrt(edges))
    assert found["roc_auc"] == pytest.approx(np.mean(pairs))
    losses = [-math.log(softmax(row)[k]) for row, k in zip(logits.tolist(), labels, strict=True)]
    assert found["loss"] == pytest.approx(np.mean(losses))


def test_majority_class_of_mrpc(shared: Path):
    with open(shared / "glue/MRPC/dev.tsv", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    labels = np.array([int(row["Quality"]) for row in rows])
    always = np.tile([0.0, 1.0], (len(labels), 1))
    found = classification_metrics(labels, always, ["0", "1"])
    # The majority class of this dev set, as papers report it: 279 of 408.
    assert found["accuracy"] == pytest.approx(279 / 408)
    assert found["f1"] == pytest.approx(2 * 279 / (408 + 279))
    assert found["matthews"] == 0.0


def test_table_and_confusion_matrix_agree():
    labels, logits = random_case(5, seed=3)
    matrix = confusion_matrix(labels, logits, NAMES[:5])
    table = per_class_table(labels, logits, NAMES[:5])
    assert matrix.sum() == len(labels)
    for place, row in enumerate(table):
        found = matrix[place, place]
        assert row.name == NAMES[place]
        assert row.support == matrix[place].sum() == (labels == place).sum()
        assert row.recall == pytest.approx(found / matrix[place].sum())
        assert row.precision == pytest.approx(found / matrix[:, place].sum())
        assert row.f1 == pytest.approx(2 * found / (matrix[place].sum() + matrix[:, place].sum()))


def test_absent_class_is_in_the_table_but_not_in_the_mean():
    labels, logits = random_case(2, seed=1)
    logits = np.concatenate([logits, np.full((len(labels), 1), -50.0)], axis=1)
    names = ["a", "b", "never"]
    assert per_class_table(labels, logits, names)[2].support == 0
    found = classification_metrics(labels, logits, names)
    expected = classification_metrics(labels, logits[:, :2], names[:2])
    assert found["f1_macro"] == pytest.approx(expected["f1_macro"])
    assert "roc_auc" in expected and "roc_auc" not in found


def test_single_class_has_metrics_without_warnings():
    found = classification_metrics(np.zeros(4, int), np.tile([3.0, 0.0], (4, 1)), ["a", "b"])
    assert found["accuracy"] == 1 and found["f1"] == 0 and found["matthews"] == 0
    assert not {name for name, value in found.items() if math.isnan(value)}


def test_calibration_bins():
    # Probabilities 0.6 (right, wrong) and 0.9 (right): bins (8/15, 9/15] and (13/15, 14/15].
    shares = np.array([[0.6, 0.4], [0.6, 0.4], [0.1, 0.9]])
    labels = np.array([0, 1, 1])
    bins = calibration_bins(labels, np.log(shares))
    assert [(b, one.count) for b, one in enumerate(bins) if one.count] == [(8, 2), (13, 1)]
    assert bins[8].confidence == pytest.approx(0.6) and bins[8].accuracy == 0.5
    found = classification_metrics(labels, np.log(shares), ["a", "b"])
    assert found["calibration_error"] == pytest.approx((2 * 0.1 + 1 * 0.1) / 3)
    assert bins[0].low == 0 and bins[-1].high == 1


def test_multiple_choice_accuracy():
    logits = np.array([[1.0, 2.0, 0.0], [3.0, -np.inf, 1.0]])
    found = multiple_choice_metrics(np.array([1, 2]), logits)
    assert found["accuracy"] == 0.5
    losses = [-math.log(softmax([1.0, 2.0, 0.0])[1]), -math.log(softmax([3.0, 1.0])[1])]
    assert found["loss"] == pytest.approx(np.mean(losses))


@pytest.mark.parametrize(
    "labels, logits, message",
    [
        ([], np.zeros((0, 2)), "no examples with labels"),
        ([0, 1], [[0, 1], [np.nan, 1]], "the logits hold nan, first at 1, 0"),
        ([0, 1], [[0, 1], [np.inf, 1]], "the logits hold inf, first at 1, 0"),
        ([0, 2], [[0, 1], [0, 1]], r"row 1 has the class id 2, .* among 2 \(a, b\)"),
        ([0, -1], [[0, 1], [0, 1]], "row 1 has the class id -1"),
        ([0, 1], [[0, 1, 2], [0, 1, 2]], r"logits of shape \[2, 3\] for 2 classes \(a, b\)"),
    ],
)
def test_invalid_inputs_are_rejected(labels, logits, message):
    with pytest.raises(UserError, match=message):
        classification_metrics(np.array(labels, int), np.array(logits, float), ["a", "b"])


def test_unequal_numbers_of_examples_raise_value_error():
    with pytest.raises(ValueError, match="examples do not pair up: 2 and 3"):
        classification_metrics(np.zeros(2, int), np.zeros((3, 2)), ["a", "b"])
