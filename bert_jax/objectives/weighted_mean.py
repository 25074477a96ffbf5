"""Losses and metrics as sums with weights: divided once, after everything has been added up."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class WeightedMean(NamedTuple):
    """`total` / `weight`, both float32 scalars, kept apart so that adding parts stays exact."""

    total: jax.Array
    weight: jax.Array


def weighted_mean(values: jax.Array, weights: jax.Array) -> WeightedMean:
    """The weighted sum of `values` and the sum of `weights`, of equal shape."""
    weights = weights.astype(jnp.float32)
    return WeightedMean(jnp.sum(values.astype(jnp.float32) * weights), jnp.sum(weights))


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """-log softmax(logits)[label] in nats, float32 [...]; logits [..., C], integer labels [...]."""
    return _cross_entropy(logits.astype(jnp.float32), labels)


def is_correct(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """bool [...]: no class scores higher than the label. On CPU argmax costs more than the loss."""
    return _label_logits(logits, labels) >= jnp.max(logits, axis=-1)


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
    # Autodiff scatters -1 into zeros of the logits' shape and adds that; here all is one pass.
    logits, labels, logsumexp = residuals
    class_ids = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    one_hot = (class_ids == labels[..., None]).astype(jnp.float32)
    return (jnp.exp(logits - logsumexp[..., None]) - one_hot) * grad[..., None], None


_cross_entropy.defvjp(_cross_entropy_fwd, _cross_entropy_bwd)
