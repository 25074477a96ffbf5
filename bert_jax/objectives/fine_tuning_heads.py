"""Defines what training needs to know of each kind of head: batch fields, outputs and loss.

`HEAD_SPECS` has one entry for each head config of `TaskHead`. The network of a head is in
`bert_jax.models`; decoding and metrics are in `bert_jax.tasks`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax

from bert_jax.batch import CHOICE_FIELDS, ENCODER_FIELDS, SPAN_FIELDS, TOKEN_LABEL_FIELDS
from bert_jax.models.heads.config import (
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RegressionHead,
    SequenceClassificationHead,
    TaskHead,
    TokenClassificationHead,
)
from bert_jax.objectives import fine_tuning_losses as losses
from bert_jax.objectives.base import Batch
from bert_jax.objectives.fine_tuning_losses import Metrics
from bert_jax.objectives.weighted_mean import WeightedMean

HeadOutputs = dict[str, jax.Array]
"""Outputs of a head for a batch, float32, by kind of head:

sequence classification "logits" [B, C]; regression "values" [B]; token classification "logits"
[B, L, C]; question answering "start_logits" and "end_logits" [B, L]; multiple choice "logits"
[B, A].
"""


@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """Describes one kind of head to the fine-tuning objective.

    Attributes:
      input_fields: batch fields that the encoder reads.
      label_fields: batch fields that the loss compares with.
      features_field: batch field of cached encoder features, in place of running the encoder.
      loss_reads_padding: whether the loss depends on the hidden states of padding.
      make_outputs: (logits of `EncoderWithHeads.task_logits`, batch) -> named outputs.
      label_weights: (batch, class weights) -> the weight of each label, whose sum divides the loss.
      compute_loss: (outputs, batch, class weights, label smoothing) -> loss and metrics.
      uncertainty_scale: factor of the loss under uncertainty weighting (Kendall et al. 2018): 1/2
        for a squared error, 1 for a cross-entropy.
    """

    input_fields: tuple[str, ...] = ENCODER_FIELDS
    label_fields: tuple[str, ...]
    features_field: str
    loss_reads_padding: bool = False
    make_outputs: Callable[[jax.Array, Batch], HeadOutputs]
    label_weights: Callable[[Batch, Sequence[float]], jax.Array]
    compute_loss: Callable[
        [HeadOutputs, Batch, Sequence[float], float], tuple[WeightedMean, Metrics]
    ]
    uncertainty_scale: float = 1.0


def head_spec(head: TaskHead) -> HeadSpec:
    """Returns the spec of a head."""
    return HEAD_SPECS[type(head)]


def _logits(logits: jax.Array, batch: Batch) -> HeadOutputs:
    return {"logits": logits}


def _choice_logits(logits: jax.Array, batch: Batch) -> HeadOutputs:
    # One score for each of the B x A texts.
    return {"logits": logits.reshape(batch[CHOICE_FIELDS[0]].shape[:2])}


def _example_weights(batch: Batch, class_weights: Sequence[float]) -> jax.Array:
    return batch["example_weights"]


HEAD_SPECS: dict[type[TaskHead], HeadSpec] = {
    SequenceClassificationHead: HeadSpec(
        label_fields=("labels",),
        features_field="cls_encoder_features",
        make_outputs=_logits,
        label_weights=lambda batch, class_weights: losses.apply_class_weights(
            batch["example_weights"], batch["labels"], class_weights
        ),
        compute_loss=lambda outputs, batch, class_weights, label_smoothing: losses.classification(
            outputs["logits"], batch, class_weights, label_smoothing
        ),
    ),
    RegressionHead: HeadSpec(
        label_fields=("label_values",),
        features_field="cls_encoder_features",
        make_outputs=lambda logits, batch: {"values": logits[:, 0]},
        label_weights=_example_weights,
        compute_loss=lambda outputs, batch, class_weights, label_smoothing: losses.regression(
            outputs["values"], batch
        ),
        uncertainty_scale=0.5,
    ),
    TokenClassificationHead: HeadSpec(
        label_fields=TOKEN_LABEL_FIELDS,
        features_field="encoder_features",
        make_outputs=_logits,
        label_weights=lambda batch, class_weights: losses.apply_class_weights(
            losses.word_weights(batch), batch["token_labels"], class_weights
        ),
        compute_loss=lambda outputs, batch, class_weights, label_smoothing: (
            losses.token_classification(outputs["logits"], batch, class_weights, label_smoothing)
        ),
    ),
    QuestionAnsweringHead: HeadSpec(
        label_fields=SPAN_FIELDS,
        features_field="encoder_features",
        loss_reads_padding=True,  # the softmax is over all positions, as in BERT's run_squad.py
        make_outputs=lambda logits, batch: {
            "start_logits": logits[..., 0],
            "end_logits": logits[..., 1],
        },
        label_weights=_example_weights,
        compute_loss=lambda outputs, batch, class_weights, label_smoothing: losses.span_extraction(
            outputs["start_logits"], outputs["end_logits"], batch
        ),
    ),
    MultipleChoiceHead: HeadSpec(
        input_fields=CHOICE_FIELDS,
        label_fields=("labels",),
        features_field="choice_cls_encoder_features",
        make_outputs=_choice_logits,
        label_weights=_example_weights,
        compute_loss=lambda outputs, batch, class_weights, label_smoothing: losses.classification(
            outputs["logits"], batch, class_weights, label_smoothing
        ),
    ),
}
