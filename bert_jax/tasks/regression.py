"""Defines the kind "regression": a score for a text or a pair of texts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import jax.numpy as jnp
import numpy as np

from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.finetuning.features import TargetValues
from bert_jax.errors import UserError
from bert_jax.losses import Batch, WeightedMean, weighted_mean
from bert_jax.models.heads.config import RegressionHead, TaskHead
from bert_jax.tasks.base import UNLABELED, Json, KindDescription, Resampling, ScoredExamples
from bert_jax.tasks.classification import TextPairKind, shown_texts
from bert_jax.tasks.hugging_face import (
    CLASSIFICATION,
    REGRESSION,
    describe_labels,
    label_maps,
    problem_type_of,
    read_labels,
)
from bert_jax.tasks.losses import HeadOutputs, HeadSpec, Metrics
from bert_jax.tasks.metrics.regression import REGRESSION_METRICS, regression_metrics

Metric = Callable[[np.ndarray, np.ndarray], float]

MAX_SCATTER_POINTS = 500
"""Limit for the examples in a scatter plot; they are spread evenly over the split."""


def regression_loss(
    outputs: HeadOutputs, batch: Batch, class_weights: Sequence[float], label_smoothing: float
) -> tuple[WeightedMean, Metrics]:
    """Computes the mean squared error of `label_values`."""
    errors = jnp.square(outputs["values"] - batch["label_values"])
    loss = weighted_mean(errors, batch["example_weights"])
    return loss, {"loss": loss, "mse": loss}


class Regression(TextPairKind):
    """Predicts a number; references and predictions are float [n]."""

    name = "regression"
    head_type = RegressionHead
    spec = HeadSpec(
        label_fields=("label_values",),
        output_names=("values",),
        make_outputs=lambda logits, batch: {"values": logits[:, 0]},
        compute_loss=regression_loss,
        # The likelihood of a Gaussian has 1 / (2 s^2) before the squared error, and of a softmax 1
        # / s^2 (Kendall et al. 2018).
        uncertainty_scale=0.5,
    )
    description = KindDescription(
        expected_input="a text or a pair of texts",
        text_names=("first text", "second text"),
        error_loss="distance",
        pipeline_tag="text-classification",
        head_output="one number for a text or a pair of texts, from the pooled first token",
        result="numbers",
        example_arguments='"A text."',
    )
    empty_prediction: ClassVar[Mapping[str, Any]] = {"value": None}
    output_field = "value"
    resampled_metrics: ClassVar[Mapping[str, Metric]] = REGRESSION_METRICS
    """The metrics that can be bootstrapped, as functions of references and predictions."""

    def head_from_hugging_face(self, data: Mapping[str, Any], source: str) -> TaskHead | None:
        """Reads a head with one label, or with the problem type of a regression."""
        labels = read_labels(data, source)
        if problem_type_of(data, labels) != REGRESSION:
            return None
        if len(labels) != 1:
            raise UserError(
                f"{source}: problem_type is {REGRESSION!r}, but {describe_labels(data)}; expected "
                f"1 (multi-output regression is not supported), or problem_type {CLASSIFICATION!r}"
            )
        return RegressionHead()

    def head_to_hugging_face(self, head: Any) -> Json:
        """Returns one label without a meaning, and the problem type."""
        return {**label_maps(("LABEL_0",)), "problem_type": REGRESSION}

    def make_targets(
        self, examples: Sequence[TextExample], labels: Sequence[str]
    ) -> dict[str, TargetValues]:
        """Returns the score of each example."""
        return {"label_values": [float(cast(float, each.label)) for each in examples]}

    def get_references(self, examples: Sequence[TextExample], labels: Sequence[str]) -> np.ndarray:
        """Returns scores, float [n]."""
        return np.array([example.label for example in examples])

    def compute_metrics(
        self, references: np.ndarray, predictions: np.ndarray, labels: Sequence[str]
    ) -> dict[str, float]:
        """Computes correlations and the mean squared error; see `regression_metrics`."""
        return regression_metrics(references, predictions)

    def resampling(
        self, metric: str, references: np.ndarray, predictions: np.ndarray
    ) -> Resampling | None:
        """Returns one of `resampled_metrics`; None for others."""
        score = self.resampled_metrics.get(metric)
        if score is None:
            return None
        return score, (np.asarray(references, np.float64), np.asarray(predictions, np.float64))

    def prediction_to_json(
        self, example: TextExample, prediction: np.ndarray, labels: Sequence[str]
    ) -> Json:
        """Returns {"value"}."""
        return {"value": float(prediction)}

    def shown_values(self, predictions: np.ndarray) -> np.ndarray:
        """Returns the predictions on the scale of the labels."""
        return predictions

    def analysis_tables(self, scored: ScoredExamples) -> Json:
        """Returns pairs [reference, predicted] for a scatter plot."""
        step = -(-len(scored.references) // MAX_SCATTER_POINTS)
        values = self.shown_values(scored.predictions)
        # Every n-th example instead of the first ones, because data may be sorted by score.
        pairs = np.stack([scored.references, values], axis=1)[::step]
        return {"reference_vs_predicted": pairs.astype(np.float64).tolist()}

    def error_losses(self, references: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """Returns the absolute errors |prediction - label|, float64 [n]."""
        return np.abs(references.astype(np.float64) - self.shown_values(predictions))

    def error_to_json(self, scored: ScoredExamples, index: int) -> Json:
        """Returns the texts of an example, its label and the predicted value."""
        example = scored.examples[index]
        return {
            "texts": shown_texts(example),
            "reference": f"{example.label:.4g}",
            "predicted": f"{float(self.shown_values(scored.predictions[index])):.4g}",
        }

    def count_keys(self, example: TextExample) -> list[str]:
        """Returns whether there is a score: the values themselves are not counted."""
        return [UNLABELED if example.label is None else "(score)"]
