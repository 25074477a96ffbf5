"""Compares the metrics of several labels with scikit-learn, and thresholds with a search."""

from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from sklearn import metrics as sklearn_metrics

from bert_jax.errors import UserError
from bert_jax.tasks.metrics.bootstrap import bootstrap_interval
from bert_jax.tasks.metrics.classification import with_thresholds
from bert_jax.tasks.metrics.multi_label import (
    best_thresholds,
    is_predicted,
    label_table,
    metric_for_resampling,
    multi_label_metrics,
)

NAMES = ("a", "b", "c", "d", "never")


def random_split(seed: int = 0, count: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """Returns references without the last label, and predictions of which many are equal."""
    draw = np.random.default_rng(seed)
    references = draw.random((count, len(NAMES))) < (0.5, 0.3, 0.1, 0.05, 0)
    references[0, 3] = True
    logits = np.round(draw.normal(size=references.shape) + 1.5 * references - 1, 1)
    return references, with_thresholds(logits, (0.3, 0.5, 0.2, 0.1, 0.4))


def f1(references: np.ndarray, decisions: np.ndarray, average: str) -> float:
    zero: Any = 0
    return float(
        sklearn_metrics.f1_score(references, decisions, average=average, zero_division=zero)
    )


def test_metrics_equal_scikit_learn():
    references, predictions = random_split()
    found = multi_label_metrics(references, predictions, NAMES)
    probabilities = expit(predictions["logit"].astype(np.float64))
    decisions, at_half = probabilities > predictions["threshold"], probabilities > 0.5
    has_positive = references.any(axis=0)
    expected = {
        "mean_average_precision": sklearn_metrics.average_precision_score(
            references[:, has_positive], probabilities[:, has_positive], average="macro"
        ),
        "f1_micro": f1(references, decisions, "micro"),
        "f1_macro": f1(references, decisions, "macro"),
        "subset_accuracy": sklearn_metrics.accuracy_score(references, decisions),
        "f1_micro_at_0.5": f1(references, at_half, "micro"),
        "f1_macro_at_0.5": f1(references, at_half, "macro"),
        "loss": sklearn_metrics.log_loss(references.ravel(), probabilities.ravel()),
    }
    assert found == pytest.approx(expected, abs=1e-6)
    assert 0 < found["f1_macro"] < found["f1_micro"] < 1
    usual = multi_label_metrics(
        references, with_thresholds(predictions["logit"], (0.5,) * 5), NAMES
    )
    assert usual["f1_micro"] == found["f1_micro_at_0.5"] and "f1_micro_at_0.5" not in usual


def test_table_of_labels_equals_scikit_learn():
    references, predictions = random_split()
    rows = label_table(references, predictions, NAMES)
    zero: Any = 0
    columns: Any = sklearn_metrics.precision_recall_fscore_support(
        references, is_predicted(predictions), zero_division=zero
    )
    for row, name, *expected in zip(rows, NAMES, *columns, strict=True):
        assert row.name == name
        assert [row.precision, row.recall, row.f1, row.support] == pytest.approx(expected)
    assert [row.threshold for row in rows] == [0.3, 0.5, 0.2, 0.1, 0.4]


def test_thresholds_have_the_highest_f1_and_are_nearest_to_half():
    references, predictions = random_split(seed=1)
    thresholds = best_thresholds(references, predictions["logit"])
    assert thresholds[-1] == 0.5  # no text has the label
    for label, threshold in enumerate(thresholds[:-1]):
        probabilities = expit(predictions["logit"][:, label].astype(np.float64))
        levels = np.unique([0.0, *probabilities])
        candidates = (levels[1:] + levels[:-1]) / 2
        scores = [f1(references[:, label], probabilities > each, "binary") for each in candidates]
        best = candidates[np.isclose(scores, max(scores))]
        assert threshold == best[np.argmin(np.abs(best - 0.5))]
    # The lowest threshold predicts a label for every text, and none is needed if all have it.
    always = best_thresholds(np.ones((3, 1), bool), np.array([[-2.0], [1.0], [-3.0]]))
    assert 0 < always[0] < expit(-3.0)


def test_an_interval_resamples_rows():
    references, predictions = random_split(seed=2)
    rows = np.random.default_rng(3).integers(0, len(references), len(references))
    expected = multi_label_metrics(references[rows], predictions[rows], NAMES)
    for metric in ("mean_average_precision", "f1_micro", "f1_macro", "subset_accuracy"):
        found = metric_for_resampling(metric, references, predictions)
        assert found is not None
        arrays, score = found
        assert score(*(array[rows] for array in arrays)) == pytest.approx(expected[metric])
        low, high = bootstrap_interval(score, *arrays, n_resamples=200)
        assert low < score(*arrays) < high
    assert metric_for_resampling("loss", references, predictions) is None


def test_invalid_predictions_are_refused():
    references, predictions = random_split()
    with pytest.raises(UserError, match=r"has 4 \(a, b, c, d\): its labels and those of the data"):
        multi_label_metrics(references, predictions, NAMES[:4])
    predictions["logit"][2, 1] = np.nan
    with pytest.raises(UserError, match="logits hold nan, first at 2, 1"):
        multi_label_metrics(references, predictions, NAMES)
    with pytest.raises(UserError, match="no examples with labels"):
        multi_label_metrics(references[:0], predictions[:0], NAMES)
