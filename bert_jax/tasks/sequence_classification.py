"""Defines the kind "classification": one of C classes for a text or a pair of texts."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.special import softmax

from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.finetuning.features import TargetValues, make_label_lookup
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.tasks.descriptions import UNLABELED, Json, KindDescription, as_dicts
from bert_jax.tasks.logits import LogitsKind, calibration_table, max_probability
from bert_jax.tasks.metrics import classification
from bert_jax.tasks.text_pair import TextPairKind, shown_texts


class SequenceClassification(LogitsKind, TextPairKind):
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
    empty_prediction: ClassVar[Mapping[str, Any]] = {"label": None, "probabilities": None}

    def make_head(self, labels: tuple[str, ...]) -> SequenceClassificationHead:
        """Returns a head with one output for each class."""
        return SequenceClassificationHead(labels=labels)

    def make_targets(
        self, examples: Sequence[TextExample], labels: Sequence[str]
    ) -> dict[str, TargetValues]:
        """Returns the class id of each example and, if all have them, their soft labels."""
        label_to_id = make_label_lookup(labels)
        targets: dict[str, TargetValues] = {
            "labels": [label_to_id(str(e.label), e.id) for e in examples]
        }
        logits = [np.array(e.label_logits) for e in examples if e.label_logits is not None]
        if len(logits) == len(examples):
            targets["label_logits"] = logits
        return targets

    def get_references(self, examples: Sequence[TextExample], labels: Sequence[str]) -> np.ndarray:
        """Returns class ids, int [n]."""
        label2id = {label: class_id for class_id, label in enumerate(labels)}
        return np.array([label2id[str(example.label)] for example in examples])

    def compute_metrics(
        self, references: np.ndarray, predictions: np.ndarray, labels: Sequence[str]
    ) -> dict[str, float]:
        """Computes accuracy, F1 and others; see `classification_metrics`."""
        return classification.classification_metrics(references, predictions, labels)

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
