"""The objectives of fine-tuning, as pure functions of a head's outputs and batch fields.

Each returns its loss and its metrics as `Mean`s; the loss's `weight` is the part's share of what
the whole batch is divided by. A row with `example_weights` 0 counts nowhere.

Source: Devlin et al. 2019, section 4. Class weights and label smoothing are those of PyTorch's
`CrossEntropyLoss`, so that recipes can be carried over with their numbers.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.objectives.mean import Mean, cross_entropy, hits, mean

Batch = dict[str, jax.Array]
Metrics = dict[str, Mean]


def classification(
    logits_BC: jax.Array,
    batch: Batch,
    class_weights: Sequence[float] = (),
    label_smoothing: float = 0.0,
) -> tuple[Mean, Metrics]:
    """Cross-entropy of each row's `labels`; for multiple choice the classes are the A choices."""
    labels, weights = batch["labels"], batch["example_weights"]
    loss = _cross_entropy(logits_BC, labels, weights, class_weights, label_smoothing)
    return loss, {"loss": loss, "accuracy": mean(hits(logits_BC, labels), weights)}


def regression(values_B: jax.Array, batch: Batch) -> tuple[Mean, Metrics]:
    """The squared difference from each row's `label_values`."""
    loss = mean(jnp.square(values_B - batch["label_values"]), batch["example_weights"])
    return loss, {"loss": loss, "mse": loss}


def tagging(
    logits_BLC: jax.Array,
    batch: Batch,
    class_weights: Sequence[float] = (),
    label_smoothing: float = 0.0,
) -> tuple[Mean, Metrics]:
    """Cross-entropy of `token_labels` over the first pieces of words; each word weighs the same.

    `accuracy` is that of words.
    """
    labels, weights = batch["token_labels"], word_weights(batch)
    loss = _cross_entropy(logits_BLC, labels, weights, class_weights, label_smoothing)
    return loss, {"loss": loss, "accuracy": mean(hits(logits_BLC, labels), weights)}


def spans(
    start_logits_BL: jax.Array, end_logits_BL: jax.Array, batch: Batch
) -> tuple[Mean, Metrics]:
    """Cross-entropy of start and of end over all positions, half and half.

    `accuracy` is the share of rows with both of them right.
    """
    starts, ends, weights = (
        batch["start_positions"],
        batch["end_positions"],
        batch["example_weights"],
    )
    losses = cross_entropy(start_logits_BL, starts) + cross_entropy(end_logits_BL, ends)
    start_right, end_right = hits(start_logits_BL, starts), hits(end_logits_BL, ends)
    loss = mean(losses / 2, weights)
    metrics = {
        "loss": loss,
        "accuracy": mean(start_right & end_right, weights),
        "start_accuracy": mean(start_right, weights),
        "end_accuracy": mean(end_right, weights),
    }
    return loss, metrics


def word_weights(batch: Batch) -> jax.Array:
    """float32 [B, L]: 1 at the first piece of each word of a row that counts."""
    return batch["token_label_weights"] * batch["example_weights"][:, None]


def weigh_classes(
    weights: jax.Array, labels: jax.Array, class_weights: Sequence[float]
) -> jax.Array:
    """`weights` times the weight of each label's class; float32, of the shape of `labels`."""
    if not class_weights:
        return weights
    return weights * jnp.asarray(class_weights, jnp.float32)[labels]


def _cross_entropy(
    logits: jax.Array,
    labels: jax.Array,
    weights: jax.Array,
    class_weights: Sequence[float],
    label_smoothing: float,
) -> Mean:
    """As PyTorch's: smoothing spreads a share over all classes, each with the weight of its own."""
    chosen = weigh_classes(weights, labels, class_weights)
    loss = mean(cross_entropy(logits, labels), chosen)
    if not label_smoothing:
        return loss
    classes = logits.shape[-1]
    per_class = jnp.asarray(class_weights or (1.0,) * classes, jnp.float32)
    spread = -jnp.sum(jax.nn.log_softmax(logits.astype(jnp.float32)) * per_class, axis=-1) / classes
    smooth = mean(spread, weights).total
    return Mean((1 - label_smoothing) * loss.total + label_smoothing * smooth, loss.weight)
