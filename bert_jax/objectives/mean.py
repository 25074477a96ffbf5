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
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen
