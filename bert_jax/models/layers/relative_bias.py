"""Computes relative position biases, which are added to the attention scores: T5's and ALiBi.

Distances between positions are sorted into buckets: small ones each have a bucket of their own,
larger ones share buckets whose sizes grow logarithmically. Each head learns a number per bucket
(Raffel et al. 2020, section 2.1). MPNet uses the same bias. ALiBi's biases are not learned.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class RelativePositionBias(nnx.Module):
    """Learns a bias for each head and each bucket of distances between query and key.

    Attributes:
      bias: [buckets, H]. Called bias and not embedding, because weight decay does not apply to it.
    """

    def __init__(
        self,
        num_heads: int,
        init: nnx.Initializer,
        rngs: nnx.Rngs,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
    ):
        """Initializes the table; the last arguments are as for `relative_position_buckets`."""
        self.bias = nnx.Param(init(rngs.params(), (num_buckets, num_heads), jnp.float32))
        self.max_distance, self.bidirectional = max_distance, bidirectional

    def __call__(self, length: int) -> jax.Array:
        """Returns the bias for sequences of a length, float32 [1, H, L, L].

        Within a packed example the distance of two tokens is the difference of their indices in the
        row, so the bias is the same for packed rows.
        """
        by_offset_HO = self.by_offset(length)
        shape = (by_offset_HO.shape[0], length, by_offset_HO.shape[1])
        return skew(jnp.broadcast_to(by_offset_HO[:, None], shape))[None]

    def by_offset(self, length: int) -> jax.Array:
        """Returns the bias of each offset key - query in a length, float32 [H, 2L - 1]."""
        table = self.bias[...].astype(jnp.float32)
        buckets = relative_position_buckets(
            offsets(length),
            num_buckets=len(table),
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        # A product, because the gradient of a lookup in so small a table would be a slow scatter.
        return jnp.dot(
            table.T,
            jax.nn.one_hot(buckets, len(table), axis=0, dtype=jnp.float32),
            precision=jax.lax.Precision.HIGHEST,
        )


# In NumPy, when the step is traced: the offsets are constants of the length. In a packed row the
# distance of two tokens of one example is the difference of their indices, so packing needs nothing
# else.
def offsets(length: int) -> np.ndarray:
    """Returns all differences key position - query position, int [2L - 1]: -(L - 1) to L - 1."""
    return np.arange(1 - length, length)


def skew(by_offset: jax.Array) -> jax.Array:
    """Maps values by query and offset [..., L, 2L - 1] to values by query and key [..., L, L].

    The result at (i, j) is the value of query i for the offset j - i, which has the index
    j - i + L - 1. The rows are shifted by padding and reshaping: a gather of single elements is
    slow on TPUs.
    """
    *batch, length, num_offsets = by_offset.shape
    # A gather of single elements would be slow on TPUs. On a CPU with 2 cores padding and reshaping
    # gives the same bits and takes, with gradients, 32 ms instead of 76 for 128 tokens, and 446
    # instead of 438 for 512 (bench/disentangled_attention.py); on a TPU the two were not compared.
    padded = jnp.pad(by_offset, [(0, 0)] * (len(batch) + 1) + [(0, 1)])
    flat = padded.reshape(*batch, length * (num_offsets + 1))
    # With one element less in each row, row i starts i elements further to the left.
    shifted = flat[..., length - 1 : length - 1 + length * num_offsets]
    return shifted.reshape(*batch, length, num_offsets)[..., :length]


def relative_position_buckets(
    relative_positions: np.ndarray,
    *,
    num_buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
) -> np.ndarray:
    """Returns the bucket of each difference key position - query position, int32.

    The same integers as `_relative_position_bucket` of Hugging Face's T5.

    Args:
      num_buckets: the number of buckets; half of them are for keys after the query if
        `bidirectional`.
      max_distance: distances from here on share the last bucket.
      bidirectional: whether keys after the query have buckets; if not, they are in bucket 0.
    """
    if bidirectional:
        num_buckets //= 2
        first = np.where(relative_positions > 0, num_buckets, 0)
        distances = np.abs(relative_positions)
    else:
        first = np.zeros_like(relative_positions)
        distances = np.maximum(-relative_positions, 0)
    num_exact = num_buckets // 2
    ratio = np.maximum(distances, num_exact).astype(np.float32) / np.float32(num_exact)
    scale = np.float32((num_buckets - num_exact) / math.log(max_distance / num_exact))
    logarithmic = num_exact + (np.log(ratio) * scale).astype(np.int32)
    large = np.minimum(logarithmic, num_buckets - 1)
    return (first + np.where(distances < num_exact, distances, large)).astype(np.int32)


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Returns the slope of each head, float32 [H]: 2^(-8/H), 2^(-16/H), ... if H is a power of two.

    Otherwise the slopes of the next lower power of two are followed by every second one of the next
    higher, as in the authors' code.
    """
    lower = 2 ** math.floor(math.log2(num_heads))
    slopes = _geometric(lower)
    if lower < num_heads:
        slopes = np.concatenate([slopes, _geometric(2 * lower)[::2][: num_heads - lower]])
    return slopes.astype(np.float32)


def _geometric(num_heads: int) -> np.ndarray:
    return 2.0 ** (-8.0 / num_heads * np.arange(1, num_heads + 1))


def alibi_bias(num_heads: int, length: int) -> jax.Array:
    """Returns minus the slope of a head times the distance, float32 [1, H, L, L].

    Attention with linear biases (Press et al. 2022, section 3), in both directions as in MosaicBERT
    (Portes et al. 2023). The bias is the same for packed rows.
    """
    position = jnp.arange(length, dtype=jnp.float32)
    distance_LL = jnp.abs(position[:, None] - position)
    return -jnp.asarray(alibi_slopes(num_heads))[None, :, None, None] * distance_LL
