"""Losses and metrics as sums with weights: divided once, after everything has been added up."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Mean(NamedTuple):
    """`total` / `weight`, both float32 scalars, kept apart so that adding parts stays exact."""

    total: jax.Array
    weight: jax.Array


def mean(values: jax.Array, weights: jax.Array) -> Mean:
    """The weighted sum of `values` and the sum of `weights`, of equal shape."""
    weights = weights.astype(jnp.float32)
    return Mean(jnp.sum(values.astype(jnp.float32) * weights), jnp.sum(weights))


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """-log softmax(logits)[label] in nats, float32 [...]; logits [..., C], integer labels [...]."""
    return _cross_entropy(logits.astype(jnp.float32), labels)


def hits(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """bool [...]: no class scores higher than the label. On CPU argmax costs more than the loss."""
    return _at_labels(logits, labels) >= jnp.max(logits, axis=-1)


def _at_labels(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


@jax.custom_vjp
def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return _forward(logits, labels)[0]


def _forward(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    total = jax.nn.logsumexp(logits, axis=-1)
    return total - _at_labels(logits, labels), (logits, labels, total)


def _backward(saved: tuple[jax.Array, ...], grad: jax.Array) -> tuple[jax.Array, None]:
    # Autodiff scatters -1 into zeros of the logits' shape and adds that; here all is one pass.
    logits, labels, total = saved
    classes = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    chosen = (classes == labels[..., None]).astype(jnp.float32)
    return (jnp.exp(logits - total[..., None]) - chosen) * grad[..., None], None


_cross_entropy.defvjp(_forward, _backward)
