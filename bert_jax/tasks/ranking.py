"""Defines the kind "ranking": how relevant a text is to a query, scored by a cross-encoder."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit

from bert_jax.data.finetuning.example import TextExample
from bert_jax.models.heads.config import RankingHead, TaskHead
from bert_jax.tasks.base import Json, KindDescription
from bert_jax.tasks.metrics.regression import regression_metrics
from bert_jax.tasks.regression import Metric, Regression

RELEVANT = 0.5
"""The smallest label of a relevant text."""


def _average_precision(references: np.ndarray, logits: np.ndarray) -> float:
    from sklearn import metrics  # takes a second to import

    relevant = references >= RELEVANT
    return float(metrics.average_precision_score(relevant, logits)) if relevant.any() else 0.0


def _accuracy(references: np.ndarray, logits: np.ndarray) -> float:
    return float(np.mean((references >= RELEVANT) == (logits > 0)))


_METRICS: dict[str, Metric] = {
    "average_precision": _average_precision,
    "accuracy": _accuracy,
}


class Ranking(Regression):
    """Predicts relevance; references are float [n] from 0 to 1, predictions logits [n]."""

    name = "ranking"
    head_type = RankingHead
    description = KindDescription(
        expected_input="a pair of texts, a query and a text",
        text_names=("query", "text"),
        error_loss="distance",
        pipeline_tag="text-ranking",
        auto_class="AutoModelForSequenceClassification",
        head_output="one logit for a query and a text, whose sigmoid is the relevance",
        result="scores",
        example_arguments='--pairs "A query." "A text."',
    )
    empty_prediction: ClassVar[Mapping[str, Any]] = {"score": None, "logit": None}
    resampled_metrics = _METRICS

    def make_head(self, labels: tuple[str, ...]) -> TaskHead:
        """Returns a head with one output."""
        return RankingHead()

    def compute_metrics(
        self, references: np.ndarray, predictions: np.ndarray, labels: Sequence[str]
    ) -> dict[str, float]:
        """Computes average precision and accuracy of relevant texts, and Spearman's correlation.

        A text is relevant if its label is at least 0.5, and predicted to be if its logit is above
        0. Without a relevant text, the average precision is 0.
        """
        spearman = regression_metrics(references, predictions)["spearman"]  # checks the inputs
        metrics = {name: metric(references, predictions) for name, metric in _METRICS.items()}
        return {**metrics, "spearman": spearman}

    def prediction_to_json(
        self, example: TextExample, prediction: np.ndarray, labels: Sequence[str]
    ) -> Json:
        """Returns {"score", "logit"}; the score is the sigmoid of the logit."""
        return {"score": float(expit(prediction)), "logit": float(prediction)}

    def analysis_tables(
        self,
        examples: Sequence[TextExample],
        references: np.ndarray,
        predictions: np.ndarray,
        labels: Sequence[str],
    ) -> Json:
        """Returns pairs [label, score] for a scatter plot."""
        return super().analysis_tables(examples, references, expit(predictions), labels)

    def error_losses(self, references: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """Returns the absolute errors |score - label|, float64 [n]."""
        return super().error_losses(references, expit(predictions))

    def error_to_json(
        self,
        example: TextExample,
        prediction: np.ndarray,
        references: np.ndarray,
        labels: Sequence[str],
    ) -> Json:
        """Returns the texts of an example, its label and the predicted score."""
        return super().error_to_json(example, expit(prediction), references, labels)
