"""The objectives of fine-tuning, as pure functions of a head's outputs and batch fields.

Each returns its loss and its metrics as `Mean`s; the loss's `weight` is the part's share of what
the whole batch is divided by. A row with `example_weights` 0 counts nowhere.

Source: Devlin et al. 2019, section 4. Class weights and label smoothing are those of PyTorch's
`CrossEntropyLoss`, so that recipes can be carried over with their numbers.
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
    """Cross-entropy of each row's `labels`; for multiple choice the classes are the A choices."""
    labels, weights = batch["labels"], batch["example_weights"]
    loss = _weighted_cross_entropy(logits_BC, labels, weights, class_weights, label_smoothing)
    return loss, {"loss": loss, "accuracy": weighted_mean(is_correct(logits_BC, labels), weights)}


def regression(values_B: jax.Array, batch: Batch) -> tuple[WeightedMean, Metrics]:
    """The squared difference from each row's `label_values`."""
    loss = weighted_mean(jnp.square(values_B - batch["label_values"]), batch["example_weights"])
    return loss, {"loss": loss, "mse": loss}


def token_classification(
    logits_BLC: jax.Array,
    batch: Batch,
    class_weights: Sequence[float] = (),
    label_smoothing: float = 0.0,
) -> tuple[WeightedMean, Metrics]:
    """Cross-entropy of `token_labels` over the first pieces of words; each word weighs the same.

    `accuracy` is that of words.
    """
    labels, weights = batch["token_labels"], word_weights(batch)
    loss = _weighted_cross_entropy(logits_BLC, labels, weights, class_weights, label_smoothing)
    return loss, {"loss": loss, "accuracy": weighted_mean(is_correct(logits_BLC, labels), weights)}


def span_extraction(
    start_logits_BL: jax.Array, end_logits_BL: jax.Array, batch: Batch
) -> tuple[WeightedMean, Metrics]:
    """Cross-entropy of start and of end over all positions, half and half.

    `accuracy` is the share of rows with both of them right.
    """
    start_positions, end_positions, weights = (
        batch["start_positions"],
        batch["end_positions"],
        batch["example_weights"],
    )
    losses = cross_entropy(start_logits_BL, start_positions) + cross_entropy(
        end_logits_BL, end_positions
    )
    start_correct, end_correct = (
        is_correct(start_logits_BL, start_positions),
        is_correct(end_logits_BL, end_positions),
    )
    loss = weighted_mean(losses / 2, weights)
    metrics = {
        "loss": loss,
        "accuracy": weighted_mean(start_correct & end_correct, weights),
        "start_accuracy": weighted_mean(start_correct, weights),
        "end_accuracy": weighted_mean(end_correct, weights),
    }
    return loss, metrics


def word_weights(batch: Batch) -> jax.Array:
    """float32 [B, L]: 1 at the first piece of each word of a row that counts."""
    return batch["token_label_weights"] * batch["example_weights"][:, None]


def apply_class_weights(
    weights: jax.Array, labels: jax.Array, class_weights: Sequence[float]
) -> jax.Array:
    """`weights` times the weight of each label's class; float32, of the shape of `labels`."""
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
    """As PyTorch's: smoothing spreads a share over all classes, each with the weight of its own."""
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
