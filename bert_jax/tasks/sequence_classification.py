"""Defines the kind "classification": one of C classes for a text or a pair of texts."""

from collections.abc import Sequence

import numpy as np
from scipy.special import log_softmax, softmax

from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.finetuning.features import Features, TargetValues, make_label_lookup
from bert_jax.evals import classification
from bert_jax.evals.bootstrap import bootstrap_interval
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.tasks.base import UNLABELED, HeadOutputs, Json, KindDescription, as_dicts
from bert_jax.tasks.text_pair import TextPairKind, shown_texts


class SequenceClassification(TextPairKind):
    """Predicts a class; references are class ids int [n], predictions logits float [n, C]."""

    name = "classification"
    head_type = SequenceClassificationHead
    description = KindDescription(
        expected_input="a text or a pair of texts",
        text_names=("first text", "second text"),
        error_loss="loss",
        pipeline_tag="text-classification",
        auto_class="AutoModelForSequenceClassification",
        head_output="one label for a text or a pair of texts, from the pooled first token",
        result="labels with probabilities",
        example_arguments='"A text."',
    )

    def make_head(self, labels: tuple[str, ...]) -> SequenceClassificationHead:
        """Returns a head with one output for each class."""
        return SequenceClassificationHead(labels=labels)

    def make_targets(
        self, examples: Sequence[TextExample], labels: Sequence[str]
    ) -> dict[str, TargetValues]:
        """Returns the class id of each example."""
        label_to_id = make_label_lookup(labels)
        return {"labels": [label_to_id(str(e.label), e.id) for e in examples]}

    def get_references(self, examples: Sequence[TextExample], labels: Sequence[str]) -> np.ndarray:
        """Returns class ids, int [n]."""
        label2id = {label: class_id for class_id, label in enumerate(labels)}
        return np.array([label2id[str(example.label)] for example in examples])

    def decode(
        self,
        examples: Sequence[TextExample],
        features: Features,
        outputs: HeadOutputs,
        labels: Sequence[str],
        *,
        allow_no_answer: bool = False,
    ) -> np.ndarray:
        """Returns the logits as they are, float [n, C]."""
        return np.stack(outputs["logits"])

    def compute_metrics(
        self, references: np.ndarray, predictions: np.ndarray, labels: Sequence[str]
    ) -> dict[str, float]:
        """Computes accuracy, F1 and others; see `classification_metrics`."""
        return classification.classification_metrics(references, predictions, labels)

    def resampled_interval(
        self,
        metric: str,
        references: np.ndarray,
        predictions: np.ndarray,
        *,
        n_resamples: int,
        seed: int,
    ) -> tuple[float, float]:
        """Bootstraps one metric."""
        return logits_interval(metric, references, predictions, n_resamples=n_resamples, seed=seed)

    def prediction_to_json(
        self, example: TextExample, prediction: np.ndarray, labels: Sequence[str]
    ) -> Json:
        """Returns {"label", "probabilities": {label: probability}}."""
        probabilities = softmax(prediction.astype(np.float64))
        return {
            "label": labels[int(prediction.argmax())],
            "probabilities": dict(zip(labels, probabilities.tolist(), strict=True)),
        }

    def analysis_tables(
        self,
        examples: Sequence[TextExample],
        references: np.ndarray,
        predictions: np.ndarray,
        labels: Sequence[str],
    ) -> Json:
        """Returns scores by class, the confusion matrix as a list of cells, and calibration."""
        matrix = classification.confusion_matrix(references, predictions, labels)
        nonzero_cells = np.argwhere(matrix).tolist()
        return {
            "classes": as_dicts(classification.per_class_table(references, predictions, labels)),
            "confusion_matrix": [[*cell, int(matrix[tuple(cell)])] for cell in nonzero_cells],
            "calibration": calibration_table(references, predictions),
        }

    def error_losses(self, references: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """Returns the cross-entropy of each wrong prediction, in nats."""
        return logits_error_losses(references, predictions)

    def error_to_json(
        self,
        example: TextExample,
        prediction: np.ndarray,
        references: np.ndarray,
        labels: Sequence[str],
    ) -> Json:
        """Describes a wrong class with its probability."""
        return {
            "texts": shown_texts(example),
            "reference": example.label,
            "predicted": labels[int(prediction.argmax())],
            "probability": max_probability(prediction),
        }

    def count_keys(self, example: TextExample) -> list[str]:
        """Returns the class name."""
        return [UNLABELED if example.label is None else str(example.label)]


# Also used for multiple choice, whose classes are the choices.


def logits_interval(
    metric: str, references: np.ndarray, logits: np.ndarray, *, n_resamples: int, seed: int
) -> tuple[float, float]:
    """Bootstraps one metric of class ids int [n] and logits [n, C]."""
    arrays, score = classification.metric_for_resampling(
        metric, np.asarray(references), np.asarray(logits, np.float64)
    )
    return bootstrap_interval(score, *arrays, n_resamples=n_resamples, seed=seed)


def logits_error_losses(references: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Returns float64 [n]: the cross-entropy of wrong predictions, 0 for correct ones."""
    logits = logits.astype(np.float64)
    losses = -log_softmax(logits, axis=1)[np.arange(len(references)), references]
    return np.where(logits.argmax(axis=1) == references, 0.0, losses)


def calibration_table(references: np.ndarray, logits: np.ndarray) -> Json:
    """Returns {"error": expected calibration error, "bins": see `CalibrationBin`}."""
    bins = classification.calibration_bins(references, logits.astype(np.float64))
    error = sum(b.count * abs(b.accuracy - b.confidence) for b in bins) / len(references)
    return {"error": error, "bins": as_dicts(bins)}


def max_probability(logits: np.ndarray) -> float:
    """Returns the probability of the predicted class, from logits [C]."""
    return float(softmax(logits.astype(np.float64)).max())
