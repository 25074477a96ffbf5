"""Computes losses and metrics as sums with weights.

A metric is divided by its weight after all microbatches are added. A loss is divided before, by the
count of the whole batch, so that losses and gradients of microbatches only have to be added.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

Batch = dict[str, jax.Array]
"""Field name -> array; see `bert_jax.batch`."""


class WeightedMean(NamedTuple):
    """Holds the mean `total` / `weight` as two float32 scalars, so that means add exactly."""

    total: jax.Array
    weight: jax.Array


def weighted_mean(values: jax.Array, weights: jax.Array) -> WeightedMean:
    """Returns the weighted sum of `values` and the sum of `weights`, of equal shape."""
    weights = weights.astype(jnp.float32)
    return WeightedMean(jnp.sum(values.astype(jnp.float32) * weights), jnp.sum(weights))


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns -log softmax(logits)[label] in nats, float32 [...]; logits [..., C], labels [...]."""
    return _cross_entropy(logits.astype(jnp.float32), labels)


def is_correct(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns whether no class scores higher than the label, bool [...].

    Compares with the maximum, because argmax takes longer than the loss itself on CPU.
    """
    return _label_logits(logits, labels) >= jnp.max(logits, axis=-1)


def padding_fraction(batch: dict[str, jax.Array]) -> WeightedMean:
    """Returns the fraction of positions that are padding."""
    padding = 1 - batch["attention_mask"]
    return weighted_mean(padding, jnp.ones(padding.shape, jnp.float32))


def _label_logits(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


@jax.custom_vjp
def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return _cross_entropy_fwd(logits, labels)[0]


def _cross_entropy_fwd(
    logits: jax.Array, labels: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    logsumexp = jax.nn.logsumexp(logits, axis=-1)
    return logsumexp - _label_logits(logits, labels), (logits, labels, logsumexp)


def _cross_entropy_bwd(residuals: tuple[jax.Array, ...], grad: jax.Array) -> tuple[jax.Array, None]:
    # Autodiff would scatter -1 into zeros of the logits' shape and add that; this is one pass.
    logits, labels, logsumexp = residuals
    class_ids = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    one_hot = (class_ids == labels[..., None]).astype(jnp.float32)
    return (jnp.exp(logits - logsumexp[..., None]) - one_hot) * grad[..., None], None


_cross_entropy.defvjp(_cross_entropy_fwd, _cross_entropy_bwd)
