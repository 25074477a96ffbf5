"""Dropout whose mask is a hash of (seed, element index): no bits are stored, drawn or replicated.

Library generators are a poor fit for dropout. Threefry spends some hundred integer operations an
element; `rbg` bits are made for the whole batch on every device when a step is partitioned. A hash
of the element's own index fuses into its neighbours, is computed again in the backward pass instead
of being kept, and gives every element the same mask on one device or on a thousand.

Integer products are slow on TPUs before v5e, so they are spent on rows and columns only: each row
(next to last axis) has a key, each column of a matrix has a key, and an element mixes the sum of
its two keys with shifts and additions. One mix serves four elements of a row, a byte for each; a
rate is therefore a number of 256ths, and what is kept is scaled by the rate that is really applied.
"""

import jax
import jax.numpy as jnp

DropoutSeed = jax.Array
"""uint32 [2]: the seed of one dropout site in one step."""

ELEMENTS_PER_HASH = 4
"""Elements of a row that share a hash, one byte each."""


def make_dropout_seeds(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Independent seeds, uint32 [*shape, 2], from one JAX key."""
    return jax.random.bits(key, (*shape, 2), jnp.uint32)


def quantized_rate(rate: float) -> float:
    """The rate that is applied when `rate` is asked for: the nearest number of 256ths.

    Raises:
      ValueError: a rate above 0 that would drop nothing.
    """
    quantized = round(rate * 256) / 256
    if rate and not quantized:
        raise ValueError(f"a dropout rate of {rate} drops nothing; the least is {1 / 256:.4f}")
    return quantized


def row_keys(index: jax.Array, seed: DropoutSeed) -> jax.Array:
    """uint32 keys of rows, by their number on the next to last axis alone."""
    return _multiplicative_hash(index, seed[0], seed[1])


def column_keys(index: jax.Array, seed: DropoutSeed) -> jax.Array:
    """uint32 keys of columns, each with its own index over all axes but the rows'."""
    return _multiplicative_hash(index, seed[1], seed[0] ^ jnp.uint32(0x85EBCA6B))


def finalize_hash(keys: jax.Array) -> jax.Array:
    """32 well-mixed bits from the sum of a row's and a column's key (Jenkins's finaliser)."""
    x = keys + (keys << jnp.uint32(10))
    x = x ^ (x >> jnp.uint32(6))
    x = x + (x << jnp.uint32(3))
    x = x ^ (x >> jnp.uint32(11))
    return x + (x << jnp.uint32(15))


def keep_from_bits(hashes: jax.Array, rate: float) -> jax.Array:
    """bool: whether the highest byte of each number says keep.

    Signed, because TPUs compare unsigned numbers with an operation more.
    """
    threshold = jnp.int32(round(rate * 256) * 2**24 - 2**31)
    return jax.lax.bitcast_convert_type(hashes, jnp.int32) >= threshold


def keep_mask(shape: tuple[int, ...], rate: float, seed: DropoutSeed) -> jax.Array:
    """bool [*shape], True with probability 1 - `realised(rate)`, independent for each element."""
    if len(shape) == 1:
        return keep_mask((1, *shape), rate, seed)[0]
    *outer, rows, columns = shape
    part_width = -(-columns // ELEMENTS_PER_HASH)
    # The column's place in its part, and its part: one row of numbers, broadcast to the rest.
    column = jax.lax.broadcasted_iota(
        jnp.uint32, (1,) * (len(shape) - 1) + (columns,), len(shape) - 1
    )
    byte = column // jnp.uint32(part_width)
    index = column - byte * jnp.uint32(part_width)
    stride = part_width
    for axis in reversed(range(len(outer))):  # an iota per axis partitions; a reshape might not
        axis_index = jax.lax.broadcasted_iota(jnp.uint32, (*outer, 1, 1), axis)
        index = index + axis_index * jnp.uint32(stride % 2**32)
        stride *= outer[axis]
    row = jax.lax.broadcasted_iota(jnp.uint32, (*(1,) * len(outer), rows, 1), len(outer))
    keys = row_keys(row, seed) + column_keys(index, seed)
    shift = jnp.uint32(24) - byte * jnp.uint32(8)
    return keep_from_bits(finalize_hash(keys) << shift, rate)


def dropout(x: jax.Array, rate: float, seed: DropoutSeed | None) -> jax.Array:
    """Zeroes each element of `x` with probability `realised(rate)`, and scales the rest up.

    `seed` None means evaluation: `x` is returned as it is. Shapes and dtype are kept.
    """
    if seed is None or rate == 0.0:
        return x
    scale = jnp.asarray(1.0 / (1.0 - quantized_rate(rate)), x.dtype)
    return jnp.where(keep_mask(x.shape, rate, seed), x * scale, jnp.zeros((), x.dtype))


def _multiplicative_hash(
    index: jax.Array, first_key: jax.Array, second_key: jax.Array
) -> jax.Array:
    """A xorshift-multiply mixer, keyed before and in the middle."""
    x = (index ^ first_key) * jnp.uint32(0x9E3779B1)
    x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> jnp.uint32(15))) + second_key
    x = (x ^ (x >> jnp.uint32(13))) * jnp.uint32(0xD35A2D97)
    return x ^ (x >> jnp.uint32(15))
