"""Computes rotary position embeddings (RoPE, Su et al. 2021), which rotate queries and keys.

A head of width K has K / 2 pairs of elements. Pair i is element i and element i + K / 2, as in
Hugging Face. At position p it is rotated by the angle p / theta^(2 i / K), so that the product of a
query and a key depends on the distance of their positions.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class RotaryTable(NamedTuple):
    """Holds the cosine and sine of every angle, float32 [B, L, 1, K / 2]; B is 1 if all are equal.

    They stay in float32 in every compute dtype: bfloat16 has 3 digits, and the angles at position
    8,191 need 4 before the decimal point.
    """

    cos: jax.Array
    sin: jax.Array

    def rotate(self, x_BLHK: jax.Array) -> jax.Array:
        """Rotates queries or keys [B, L, H, K]; the result has their dtype."""
        first, second = jnp.split(x_BLHK.astype(jnp.float32), 2, axis=-1)
        # Pairs are the halves of a head, as in Hugging Face; the paper (Su et al. 2021) pairs
        # neighboring elements, so published weights would not fit.
        rotated = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        return jnp.concatenate(rotated, axis=-1).astype(x_BLHK.dtype)


def inverse_frequencies(head_width: int, theta: float) -> np.ndarray:
    """Returns the angle between adjacent positions for each pair of elements, float32 [K / 2].

    These are the values that PyTorch computes in float32, with which published models were trained;
    a quarter of them differ from the exact ones after rounding. NumPy's float32 power is less exact
    than PyTorch's, so the power is computed in float64 and rounded before the division.
    """
    exponents = np.arange(0, head_width, 2, dtype=np.float32) / np.float32(head_width)
    powers = np.float64(theta) ** exponents.astype(np.float64)
    return np.float32(1.0) / powers.astype(np.float32)


def rotary_table(
    length: int, frequencies: jax.Array | np.ndarray, position_ids: jax.Array | None
) -> RotaryTable:
    """Returns the table of float32 `frequencies` [K / 2] for positions 0 to L - 1.

    Or for int32 `position_ids` [B, L].
    """
    positions = jnp.arange(length)[None] if position_ids is None else position_ids
    angles = positions[:, :, None].astype(jnp.float32) * frequencies
    return RotaryTable(jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None])
