"""Describes a head to the fine-tuning objective, and defines the losses that kinds of tasks share.

Losses are pure functions of a head's outputs and the batch fields. Each returns loss and metrics as
`WeightedMean`s, so that microbatches and devices can be summed before they are divided. Examples
with `example_weights` 0 do not count. The network of a head is in `bert_jax.models.heads`.

Source: Devlin et al. 2019, section 4. Class weights and label smoothing are defined as in PyTorch's
`CrossEntropyLoss`, so that their values can be taken from other recipes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from bert_jax.batch import ENCODER_FIELDS
from bert_jax.losses import Batch, WeightedMean, cross_entropy, is_correct, weighted_mean

Metrics = dict[str, WeightedMean]

HeadOutputs = dict[str, jax.Array]
"""Outputs of a head for a batch, float32, by kind of head:

sequence classification "logits" [B, C]; multi-label "binary_logits" [B, C]; regression and ranking
"values" [B]; token classification "logits" [B, L, C]; question answering "start_logits" and
"end_logits" [B, L]; multiple choice "logits" [B, A].
"""


def _return_logits(logits: jax.Array, batch: Batch) -> HeadOutputs:
    return {"logits": logits}


def _example_weights(batch: Batch, class_weights: Sequence[float]) -> jax.Array:
    return batch["example_weights"]


@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """Describes one kind of head to the fine-tuning objective.

    Attributes:
      input_fields: batch fields that the encoder reads.
      label_fields: batch fields that the loss compares with.
      output_names: the names of the outputs.
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
    output_names: tuple[str, ...] = ("logits",)
    features_field: str = "cls_encoder_features"
    loss_reads_padding: bool = False
    make_outputs: Callable[[jax.Array, Batch], HeadOutputs] = _return_logits
    label_weights: Callable[[Batch, Sequence[float]], jax.Array] = _example_weights
    compute_loss: Callable[
        [HeadOutputs, Batch, Sequence[float], float], tuple[WeightedMean, Metrics]
    ]
    uncertainty_scale: float = 1.0


def classification_loss(
    outputs: HeadOutputs,
    batch: Batch,
    class_weights: Sequence[float] = (),
    label_smoothing: float = 0.0,
) -> tuple[WeightedMean, Metrics]:
    """Computes the cross-entropy of `labels`; for multiple choice, the classes are the choices."""
    logits_BC, labels, weights = outputs["logits"], batch["labels"], batch["example_weights"]
    loss = weighted_cross_entropy(logits_BC, labels, weights, class_weights, label_smoothing)
    return loss, {"loss": loss, "accuracy": weighted_mean(is_correct(logits_BC, labels), weights)}


def apply_class_weights(
    weights: jax.Array, labels: jax.Array, class_weights: Sequence[float]
) -> jax.Array:
    """Multiplies `weights` by the weight of each label's class; float32, shaped like `labels`."""
    if not class_weights:
        return weights
    return weights * jnp.asarray(class_weights, jnp.float32)[labels]


def weighted_cross_entropy(
    logits: jax.Array,
    labels: jax.Array,
    weights: jax.Array,
    class_weights: Sequence[float],
    label_smoothing: float,
) -> WeightedMean:
    """Computes PyTorch's cross-entropy; smoothing weights each class with its own weight."""
    # As in PyTorch, the class weights also weight the sum by which the loss is divided.
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
    uniform_total = weighted_mean(uniform_losses, weights).total  # the divisor stays the same
    return WeightedMean(
        (1 - label_smoothing) * loss.total + label_smoothing * uniform_total, loss.weight
    )
