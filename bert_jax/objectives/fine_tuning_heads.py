"""Defines the losses of fine-tuning and, for each kind of head, its batch fields and outputs.

`HEAD_SPECS` has one entry for each head config of `TaskHead`. The network of a head is in
`bert_jax.models`; decoding and metrics are in `bert_jax.tasks`.

The losses are pure functions of a head's outputs and the batch fields. Each returns loss and
metrics as `WeightedMean`s, so that microbatches and devices can be summed before they are divided.
Examples with `example_weights` 0 do not count.

Source: Devlin et al. 2019, section 4. Class weights and label smoothing are defined as in PyTorch's
`CrossEntropyLoss`, so that their values can be taken from other recipes.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from bert_jax.batch import (
    CHOICE_FIELDS,
    ENCODER_FIELDS,
    SPAN_FIELDS,
    TOKEN_LABEL_FIELDS,
    WINDOW_FIELDS,
)
from bert_jax.losses import WeightedMean, cross_entropy, is_correct, weighted_mean
from bert_jax.models.heads.config import (
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RankingHead,
    RegressionHead,
    SequenceClassificationHead,
    TaskHead,
    TokenClassificationHead,
    window_encoder_of,
)
from bert_jax.objectives.base import Batch

Metrics = dict[str, WeightedMean]


def classification(
    logits_BC: jax.Array,
    batch: Batch,
    class_weights: Sequence[float] = (),
    label_smoothing: float = 0.0,
) -> tuple[WeightedMean, Metrics]:
    """Computes the cross-entropy of `labels`; for multiple choice, the classes are the choices."""
    labels, weights = batch["labels"], batch["example_weights"]
    loss = _weighted_cross_entropy(logits_BC, labels, weights, class_weights, label_smoothing)
    return loss, {"loss": loss, "accuracy": weighted_mean(is_correct(logits_BC, labels), weights)}


def regression(values_B: jax.Array, batch: Batch) -> tuple[WeightedMean, Metrics]:
    """Computes the mean squared error of `label_values`."""
    loss = weighted_mean(jnp.square(values_B - batch["label_values"]), batch["example_weights"])
    return loss, {"loss": loss, "mse": loss}


def ranking(logits_B: jax.Array, batch: Batch) -> tuple[WeightedMean, Metrics]:
    """Computes the binary cross-entropy of `label_values`, which are from 0 to 1.

    `accuracy` counts an example as relevant if its label is at least 0.5, or its logit above 0.
    """
    labels, weights = batch["label_values"], batch["example_weights"]
    # log(1 + exp(x)) - x y: the cross-entropy of sigmoid(x), which would overflow for large x.
    loss = weighted_mean(jax.nn.softplus(logits_B) - logits_B * labels, weights)
    correct = (logits_B > 0) == (labels >= 0.5)
    return loss, {"loss": loss, "accuracy": weighted_mean(correct, weights)}


def token_classification(
    logits_BLC: jax.Array,
    batch: Batch,
    class_weights: Sequence[float] = (),
    label_smoothing: float = 0.0,
) -> tuple[WeightedMean, Metrics]:
    """Computes the cross-entropy of `token_labels` over the first token of each word.

    Words have equal weights; `accuracy` counts words.
    """
    labels, weights = batch["token_labels"], word_weights(batch)
    loss = _weighted_cross_entropy(logits_BLC, labels, weights, class_weights, label_smoothing)
    return loss, {"loss": loss, "accuracy": weighted_mean(is_correct(logits_BLC, labels), weights)}


def span_extraction(
    start_logits_BL: jax.Array, end_logits_BL: jax.Array, batch: Batch
) -> tuple[WeightedMean, Metrics]:
    """Computes the mean of the cross-entropies of start and end over all positions.

    `accuracy` is the fraction of examples with both positions right.
    """
    weights = batch["example_weights"]
    start_positions, end_positions = batch["start_positions"], batch["end_positions"]
    start_losses = cross_entropy(start_logits_BL, start_positions)
    losses = start_losses + cross_entropy(end_logits_BL, end_positions)
    start_correct = is_correct(start_logits_BL, start_positions)
    end_correct = is_correct(end_logits_BL, end_positions)
    loss = weighted_mean(losses / 2, weights)
    metrics = {
        "loss": loss,
        "accuracy": weighted_mean(start_correct & end_correct, weights),
        "start_accuracy": weighted_mean(start_correct, weights),
        "end_accuracy": weighted_mean(end_correct, weights),
    }
    return loss, metrics


def word_weights(batch: Batch) -> jax.Array:
    """Returns float32 [B, L]: 1 at the first token of each word, 0 elsewhere and in padding."""
    return batch["token_label_weights"] * batch["example_weights"][:, None]


def apply_class_weights(
    weights: jax.Array, labels: jax.Array, class_weights: Sequence[float]
) -> jax.Array:
    """Multiplies `weights` by the weight of each label's class; float32, shaped like `labels`."""
    if not class_weights:
        return weights
    return weights * jnp.asarray(class_weights, jnp.float32)[labels]


def _weighted_cross_entropy(
    logits: jax.Array,
    labels: jax.Array,
    weights: jax.Array,
    class_weights: Sequence[float],
    label_smoothing: float,
) -> WeightedMean:
    """Computes PyTorch's cross-entropy; smoothing weights each class with its own weight."""
    label_weights = apply_class_weights(weights, labels, class_weights)
    loss = weighted_mean(cross_entropy(logits, labels), label_weights)
    if not label_smoothing:
        return loss
    num_classes = logits.shape[-1]
    per_class_weights = jnp.asarray(class_weights or (1.0,) * num_classes, jnp.float32)
    uniform_losses = (
        -jnp.sum(jax.nn.log_softmax(logits.astype(jnp.float32)) * per_class_weights, axis=-1)
        / num_classes
    )
    uniform_total = weighted_mean(uniform_losses, weights).total
    return WeightedMean(
        (1 - label_smoothing) * loss.total + label_smoothing * uniform_total, loss.weight
    )


HeadOutputs = dict[str, jax.Array]
"""Outputs of a head for a batch, float32, by kind of head:

sequence classification "logits" [B, C]; regression and ranking "values" [B]; token classification
"logits" [B, L, C]; question answering "start_logits" and "end_logits" [B, L]; multiple choice
"logits" [B, A].
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
    spec = HEAD_SPECS[type(head)]
    if window_encoder_of(head) is None:
        return spec
    # The windows of a text are encoded like the choices of a question.
    return dataclasses.replace(
        spec,
        input_fields=WINDOW_FIELDS,
        features_field=HEAD_SPECS[MultipleChoiceHead].features_field,
    )


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
        label_weights=lambda batch, class_weights: apply_class_weights(
            batch["example_weights"], batch["labels"], class_weights
        ),
        compute_loss=lambda outputs, batch, class_weights, label_smoothing: classification(
            outputs["logits"], batch, class_weights, label_smoothing
        ),
    ),
    RegressionHead: HeadSpec(
        label_fields=("label_values",),
        features_field="cls_encoder_features",
        make_outputs=lambda logits, batch: {"values": logits[:, 0]},
        label_weights=_example_weights,
        compute_loss=lambda outputs, batch, class_weights, label_smoothing: regression(
            outputs["values"], batch
        ),
        uncertainty_scale=0.5,
    ),
    RankingHead: HeadSpec(
        label_fields=("label_values",),
        features_field="cls_encoder_features",
        make_outputs=lambda logits, batch: {"values": logits[:, 0]},
        label_weights=_example_weights,
        compute_loss=lambda outputs, batch, class_weights, label_smoothing: ranking(
            outputs["values"], batch
        ),
    ),
    TokenClassificationHead: HeadSpec(
        label_fields=TOKEN_LABEL_FIELDS,
        features_field="encoder_features",
        make_outputs=_logits,
        label_weights=lambda batch, class_weights: apply_class_weights(
            word_weights(batch), batch["token_labels"], class_weights
        ),
        compute_loss=lambda outputs, batch, class_weights, label_smoothing: token_classification(
            outputs["logits"], batch, class_weights, label_smoothing
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
        compute_loss=lambda outputs, batch, class_weights, label_smoothing: span_extraction(
            outputs["start_logits"], outputs["end_logits"], batch
        ),
    ),
    MultipleChoiceHead: HeadSpec(
        input_fields=CHOICE_FIELDS,
        label_fields=("labels",),
        features_field="choice_cls_encoder_features",
        make_outputs=_choice_logits,
        label_weights=_example_weights,
        compute_loss=lambda outputs, batch, class_weights, label_smoothing: classification(
            outputs["logits"], batch, class_weights, label_smoothing
        ),
    ),
}
