"""Dropout whose mask is a hash of (seed, element index): no bits are stored, drawn or replicated.

Library generators are a poor fit for dropout. Threefry spends some hundred integer operations an
element; `rbg` bits are made for the whole batch on every device when a step is partitioned. A keyed
integer hash of the element's own index costs eight operations, fuses into its neighbours, is
computed again in the backward pass instead of being kept, and gives every element the same mask
on one device or on a thousand.
"""

import jax
import jax.numpy as jnp

Seed = jax.Array
"""uint32 [2]: the seed of one dropout site in one step."""


def seeds(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Independent seeds, uint32 [*shape, 2], from one JAX key."""
    return jax.random.bits(key, (*shape, 2), jnp.uint32)


def _hash(index: jax.Array, seed: Seed) -> jax.Array:
    """32 well-mixed bits an index: a xorshift-multiply mixer, keyed before and in the middle."""
    x = (index ^ seed[0]) * jnp.uint32(0x9E3779B1)
    x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> jnp.uint32(15))) + seed[1]
    x = (x ^ (x >> jnp.uint32(13))) * jnp.uint32(0xD35A2D97)
    return x ^ (x >> jnp.uint32(15))


def keep_mask(shape: tuple[int, ...], rate: float, seed: Seed) -> jax.Array:
    """bool [*shape], True with probability 1 - rate, independent for each element and seed."""
    index = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):  # an iota per axis partitions; a reshape might not
        index += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    return _hash(index, seed) >= jnp.uint32(round(rate * 2**32))


def dropout(x: jax.Array, rate: float, seed: Seed | None) -> jax.Array:
    """Zeroes each element of `x` with probability `rate` and scales the rest by 1 / (1 - rate).

    `seed` None means evaluation: `x` is returned as it is. Shapes and dtype are kept.
    """
    if seed is None or rate == 0.0:
        return x
    keep = keep_mask(x.shape, rate, seed)
    return jnp.where(keep, x * jnp.asarray(1.0 / (1.0 - rate), x.dtype), jnp.zeros((), x.dtype))
