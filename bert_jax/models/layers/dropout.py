"""Applies dropout with a mask that is a hash of (seed, element index), not random bits.

Replaces `nnx.Dropout`, which keeps a key and a counter in the model's state and draws its bits from
a library generator. Threefry takes about a hundred integer operations for each element, and `rbg`
bits are generated for the whole batch on every device when a step is partitioned. A hash of the
element's index fuses into the operations around it, is recomputed in the backward pass instead of
stored, and gives the same mask on any number of devices.

Integer products are slow on TPUs before v5e, so only rows and columns are hashed with them: each
row (next to last axis) has a key, each column of a matrix has a key, and an element mixes the sum
of its two keys with shifts and additions. One mix serves four elements of a row, one byte each. A
rate is therefore a multiple of 1/256, and the kept elements are scaled by the rate that is applied.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

DropoutSeed = jax.Array
"""uint32 [2]: the seed of one dropout in one step."""

ELEMENTS_PER_HASH = 4
"""Number of elements of a row that share a hash, one byte each."""


def make_dropout_seeds(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Derives independent seeds, uint32 [*shape, 2], from one JAX key."""
    return jax.random.bits(key, (*shape, 2), jnp.uint32)


def make_layer_dropout_seeds(
    key: jax.Array | None, num_layers: int, num_sites: int
) -> tuple[jax.Array | None, Sequence[DropoutSeed | None]]:
    """Derives the seeds of a stack of layers, and as many for what is around them.

    Args:
      key: None to apply no dropout; all seeds are None then.
      num_sites: dropouts of a layer.

    Returns:
      The seeds of the layers, uint32 [num_layers, num_sites, 2], and `num_sites` further ones, for
      embeddings and output.
    """
    if key is None:
        return None, (None,) * num_sites
    seeds = make_dropout_seeds(key, (num_layers + 1, num_sites))
    return seeds[:-1], tuple(seeds[-1])


def quantized_rate(rate: float) -> float:
    """Returns the rate that is applied for `rate`: the nearest multiple of 1/256.

    Raises:
      ValueError: a rate above 0 that rounds to 0.
    """
    quantized = round(rate * 256) / 256
    if rate and not quantized:
        raise ValueError(f"dropout rate {rate} rounds to 0; the smallest rate is {1 / 256:.4f}")
    return quantized


def row_keys(index: jax.Array, seed: DropoutSeed) -> jax.Array:
    """Returns the uint32 keys of rows, given their indices on the next to last axis."""
    return _multiplicative_hash(index, seed[0], seed[1])


def column_keys(index: jax.Array, seed: DropoutSeed) -> jax.Array:
    """Returns the uint32 keys of columns, given an index over all axes but the rows' axis."""
    return _multiplicative_hash(index, seed[1], seed[0] ^ jnp.uint32(0x85EBCA6B))


def finalize_hash(keys: jax.Array) -> jax.Array:
    """Mixes the sum of a row's and a column's key into 32 bits (Jenkins's finalizer)."""
    x = keys + (keys << jnp.uint32(10))
    x = x ^ (x >> jnp.uint32(6))
    x = x + (x << jnp.uint32(3))
    x = x ^ (x >> jnp.uint32(11))
    return x + (x << jnp.uint32(15))


def keep_from_bits(hashes: jax.Array, rate: float) -> jax.Array:
    """Returns whether to keep an element, bool, from the highest byte of each uint32."""
    # Signed, because TPUs need one more operation to compare unsigned integers.
    threshold = jnp.int32(round(rate * 256) * 2**24 - 2**31)
    return jax.lax.bitcast_convert_type(hashes, jnp.int32) >= threshold


# Random bits of `jax.random` take a third of a step (threefry), or are generated for the whole
# batch on every device (rbg). docs/tpu.md lists the costs of the alternatives. Because a mask
# depends on the indices only, a run with dropout can be resumed on another mesh and compared across
# meshes, without `shard_map`.
def keep_mask(shape: tuple[int, ...], rate: float, seed: DropoutSeed) -> jax.Array:
    """Returns bool [*shape], each element True with probability 1 - `quantized_rate(rate)`."""
    if len(shape) == 1:
        return keep_mask((1, *shape), rate, seed)[0]
    *outer, rows, columns = shape
    part_width = -(-columns // ELEMENTS_PER_HASH)
    # Column c is byte c // part_width of hash c % part_width; one row, broadcast to the others.
    column = jax.lax.broadcasted_iota(
        jnp.uint32, (1,) * (len(shape) - 1) + (columns,), len(shape) - 1
    )
    byte = column // jnp.uint32(part_width)
    index = column - byte * jnp.uint32(part_width)
    stride = part_width
    for axis in reversed(range(len(outer))):  # an iota for each axis can be partitioned
        axis_index = jax.lax.broadcasted_iota(jnp.uint32, (*outer, 1, 1), axis)
        index = index + axis_index * jnp.uint32(stride % 2**32)
        stride *= outer[axis]
    row = jax.lax.broadcasted_iota(jnp.uint32, (*(1,) * len(outer), rows, 1), len(outer))
    keys = row_keys(row, seed) + column_keys(index, seed)
    shift = jnp.uint32(24) - byte * jnp.uint32(8)
    return keep_from_bits(finalize_hash(keys) << shift, rate)


def dropout(x: jax.Array, rate: float, seed: DropoutSeed | None) -> jax.Array:
    """Zeroes each element with probability `quantized_rate(rate)` and scales the others up.

    Returns `x` itself if `seed` is None, as in evaluation. Shape and dtype do not change.
    """
    if seed is None or rate == 0.0:
        return x
    scale = jnp.asarray(1.0 / (1.0 - quantized_rate(rate)), x.dtype)
    return jnp.where(keep_mask(x.shape, rate, seed), x * scale, jnp.zeros((), x.dtype))


def _multiplicative_hash(
    index: jax.Array, first_key: jax.Array, second_key: jax.Array
) -> jax.Array:
    """Hashes an index with xorshift-multiply rounds, keyed at the start and in the middle."""
    x = (index ^ first_key) * jnp.uint32(0x9E3779B1)
    x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> jnp.uint32(15))) + second_key
    x = (x ^ (x >> jnp.uint32(13))) * jnp.uint32(0xD35A2D97)
    return x ^ (x >> jnp.uint32(15))
