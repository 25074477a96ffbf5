"""Defines the losses of fine-tuning, as pure functions of a head's outputs and the batch fields.

Each function returns the loss and the metrics as `WeightedMean`s, so that microbatches and devices
can be summed before they are divided. Examples with `example_weights` 0 do not count.

Source: Devlin et al. 2019, section 4. Class weights and label smoothing are defined as in PyTorch's
`CrossEntropyLoss`, so that their values can be taken from other recipes.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.objectives.weighted_mean import WeightedMean, cross_entropy, is_correct, weighted_mean

Batch = dict[str, jax.Array]
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
