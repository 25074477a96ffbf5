"""Defines the kind "multi-label": any number of C labels for a text or a pair of texts."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit

from bert_jax.config.labeled_data import MULTI_LABEL
from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.finetuning.features import Features, TargetValues, make_label_lookup
from bert_jax.losses import Batch, WeightedMean, weighted_mean
from bert_jax.models.heads.config import MultiLabelHead, TaskHead, label_thresholds
from bert_jax.tasks.base import (
    UNLABELED,
    Json,
    KindDescription,
    Resampling,
    ScoredExamples,
    SequenceOutputs,
    as_dicts,
)
from bert_jax.tasks.classification import TextPairKind, never_predicted, shown_texts
from bert_jax.tasks.hugging_face import (
    MULTI_LABEL_CLASSIFICATION,
    label_maps,
    problem_type_of,
    read_labels,
    read_thresholds,
    threshold_map,
)
from bert_jax.tasks.losses import HeadOutputs, HeadSpec, Metrics
from bert_jax.tasks.metrics import multi_label
from bert_jax.tasks.metrics.classification import with_thresholds

NO_LABELS = "(none of the labels)"
"""Counts and shows a text that was labeled and has none of the labels."""


def multi_label_loss(
    outputs: HeadOutputs, batch: Batch, class_weights: Sequence[float], label_smoothing: float
) -> tuple[WeightedMean, Metrics]:
    """Computes the binary cross-entropy of `label_indicators`, a mean over the labels of a text.

    It is PyTorch's `BCEWithLogitsLoss`, whose `pos_weight` are the class weights: that of a label
    multiplies the loss of texts that have it. With label smoothing, the targets are that much
    nearer to 0.5. `subset_accuracy` counts texts with all labels right at a threshold of 0.5.
    """
    logits_BC = outputs["binary_logits"].astype(jnp.float32)
    weights = batch["example_weights"]
    # In a batch of several tasks, this one may have fewer labels than another.
    indicators_BC = batch["label_indicators"][:, : logits_BC.shape[-1]]
    targets_BC = indicators_BC.astype(jnp.float32)
    if label_smoothing:
        targets_BC = targets_BC * (1 - label_smoothing) + label_smoothing / 2
    positive_weights = jnp.asarray(class_weights or (1.0,) * logits_BC.shape[-1], jnp.float32)
    # -log sigmoid(x) is softplus(-x), which does not overflow.
    losses_BC = positive_weights * targets_BC * jax.nn.softplus(-logits_BC)
    losses_BC += (1 - targets_BC) * jax.nn.softplus(logits_BC)
    loss = weighted_mean(jnp.mean(losses_BC, axis=-1), weights)
    is_right = jnp.all((logits_BC > 0) == (indicators_BC > 0), axis=-1)
    return loss, {"loss": loss, "subset_accuracy": weighted_mean(is_right, weights)}


class MultiLabel(TextPairKind):
    """Predicts labels; references are bool [n, C], predictions `PREDICTION` [n, C]."""

    name = MULTI_LABEL
    has_independent_labels = True
    head_type = MultiLabelHead
    spec = HeadSpec(
        label_fields=("label_indicators",),
        output_names=("binary_logits",),
        make_outputs=lambda logits, batch: {"binary_logits": logits},
        compute_loss=multi_label_loss,
    )
    sequence_fields: ClassVar[Mapping[str, str]] = {
        "input_ids": "L",
        "token_type_ids": "L",
        "label_indicators": "C",
    }
    description = KindDescription(
        expected_input="a text or a pair of texts",
        text_names=("first text", "second text"),
        class_table="Labels",
        error_loss="loss",
        pipeline_tag="text-classification",
        head_output=(
            "one logit for each label, from the pooled first token; its sigmoid is the probability "
            "of the label"
        ),
        result="labels with probabilities",
        example_arguments='"A text."',
    )
    empty_prediction: ClassVar[Mapping[str, Any]] = {"labels": None, "probabilities": None}

    def head_from_hugging_face(self, data: Mapping[str, Any], source: str) -> TaskHead | None:
        """Reads the labels of a head with this problem type, and thresholds if there are some."""
        labels = read_labels(data, source)
        if problem_type_of(data, labels) != MULTI_LABEL_CLASSIFICATION:
            return None
        return MultiLabelHead(labels=labels, thresholds=read_thresholds(data, labels, source))

    def head_to_hugging_face(self, head: MultiLabelHead) -> Json:
        """Returns the labels, the problem type, and thresholds if some were chosen."""
        fields = {**label_maps(head.labels), "problem_type": MULTI_LABEL_CLASSIFICATION}
        return fields | threshold_map(head.labels, head.thresholds)

    def make_targets(
        self, examples: Sequence[TextExample], labels: Sequence[str]
    ) -> dict[str, TargetValues]:
        """Returns for each example which labels it has, int32 [C]."""
        return {"label_indicators": [*_indicators(examples, labels).astype(np.int32)]}

    def get_references(self, examples: Sequence[TextExample], labels: Sequence[str]) -> np.ndarray:
        """Returns which labels each text has, bool [n, C]."""
        return _indicators(examples, labels)

    def decode(
        self,
        examples: Sequence[TextExample],
        features: Features,
        outputs: SequenceOutputs,
        head: TaskHead,
        *,
        allow_no_answer: bool = False,
    ) -> np.ndarray:
        """Returns the logit of each label with the threshold of the head, `PREDICTION` [n, C]."""
        return with_thresholds(self.pool_outputs(features, outputs), label_thresholds(head))

    def mean_loss(self, references: np.ndarray, predictions: np.ndarray) -> float:
        """Returns the mean binary cross-entropy in nats."""
        return float(multi_label.label_losses(references, predictions["logit"]).mean())

    def fit_head(
        self,
        head: TaskHead,
        references: np.ndarray,
        predictions: np.ndarray,
        metric: str | None = None,
    ) -> TaskHead:
        """Chooses the threshold of each label that gives it the highest F1."""
        thresholds = multi_label.best_thresholds(references, predictions["logit"])
        return dataclasses.replace(head, thresholds=thresholds)

    def balanced_weights(
        self, examples: Sequence[TextExample], labels: Sequence[str]
    ) -> tuple[float, ...]:
        """Returns texts without each label / texts with it; 1 for a label that no text has."""
        positives = _indicators(examples, labels).sum(axis=0)
        negatives = len(examples) - positives
        return tuple(np.where(positives, negatives / np.maximum(positives, 1), 1.0).tolist())

    def label_frequencies(
        self, examples: Sequence[TextExample], labels: Sequence[str]
    ) -> tuple[float, ...]:
        """Returns (texts with each label + 1/2) / (texts + 1), which is never 0 or 1."""
        counts = _indicators(examples, labels).sum(axis=0)
        return tuple(((counts + 0.5) / (len(examples) + 1)).tolist())

    def weaknesses(self, scored: ScoredExamples) -> list[str]:
        """Returns the labels that are never predicted although some texts have them."""
        is_missed = scored.references.any(axis=0) & ~multi_label.is_predicted(
            scored.predictions
        ).any(axis=0)
        return never_predicted(scored.labels, is_missed)

    def compute_metrics(
        self, references: np.ndarray, predictions: np.ndarray, labels: Sequence[str]
    ) -> dict[str, float]:
        """Computes mean average precision, F1 and others; see `multi_label_metrics`."""
        return multi_label.multi_label_metrics(references, predictions, labels)

    def resampling(
        self, metric: str, references: np.ndarray, predictions: np.ndarray
    ) -> Resampling | None:
        """Returns how a metric is computed from rows or from decisions."""
        found = multi_label.metric_for_resampling(metric, references, predictions)
        return None if found is None else (found[1], found[0])

    def prediction_to_json(
        self, example: TextExample, prediction: np.ndarray, labels: Sequence[str]
    ) -> Json:
        """Returns {"labels": those that are predicted, "probabilities": {label: probability}}."""
        probabilities = expit(prediction["logit"])
        return {
            "labels": _predicted_names(prediction, labels),
            "probabilities": dict(zip(labels, probabilities.tolist(), strict=True)),
        }

    def analysis_tables(self, scored: ScoredExamples) -> Json:
        """Returns the scores and the threshold of each label, and the gain over a threshold of 0.5.

        The table "thresholds" is left out if all thresholds are 0.5.
        """
        references, predictions, labels = scored.references, scored.predictions, scored.labels
        tables = {"classes": as_dicts(multi_label.label_table(references, predictions, labels))}
        metrics = self.compute_metrics(references, predictions, labels)
        rows = [
            {
                "metric": name,
                "with_the_thresholds": metrics[name],
                "with_0.5": metrics[f"{name}_at_0.5"],
                "gain": metrics[name] - metrics[f"{name}_at_0.5"],
            }
            for name in ("f1_micro", "f1_macro")
            if f"{name}_at_0.5" in metrics
        ]
        return tables | ({"thresholds": rows} if rows else {})

    def error_losses(self, references: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """Returns float64 [n]: the cross-entropies of all labels, added; 0 if all are right."""
        losses = multi_label.label_losses(references, predictions["logit"])
        is_right = (multi_label.is_predicted(predictions) == references).all(axis=1)
        return np.where(is_right, 0.0, losses.sum(axis=1))

    def error_to_json(self, scored: ScoredExamples, index: int) -> Json:
        """Describes the labels of a text and those that were predicted."""
        example, prediction = scored.examples[index], scored.predictions[index]
        return {
            "texts": shown_texts(example),
            "reference": _join(example.label),
            "predicted": _join(_predicted_names(prediction, scored.labels)),
        }

    def count_keys(self, example: TextExample) -> list[str]:
        """Returns the names of the labels."""
        if example.label is None:
            return [UNLABELED]
        return list(_names(example)) or [NO_LABELS]

    def format_label(self, example: TextExample) -> str:
        """Formats the names of the labels."""
        return UNLABELED if example.label is None else _join(_names(example))


def _names(example: TextExample) -> tuple[str, ...]:
    assert isinstance(example.label, tuple)
    return example.label


def _join(names: Sequence[str]) -> str:
    return ", ".join(names) or NO_LABELS


def _predicted_names(prediction: np.ndarray, labels: Sequence[str]) -> list[str]:
    chosen = multi_label.is_predicted(prediction)
    return [label for label, is_chosen in zip(labels, chosen, strict=True) if is_chosen]


def _indicators(examples: Sequence[TextExample], labels: Sequence[str]) -> np.ndarray:
    label_to_id = make_label_lookup(labels)
    indicators = np.zeros((len(examples), len(labels)), bool)
    for row, example in enumerate(examples):
        indicators[row, [label_to_id(name, example.id) for name in _names(example)]] = True
    return indicators
