"""Defines the pre-norm layer with rotary positions and a gated feed-forward layer.

ModernBERT and EuroBERT have it. Rotary position embeddings (RoPE, Su et al. 2021) rotate queries
and keys. A head of width K has K / 2 pairs of elements. Pair i is element i and element i + K / 2,
as in Hugging Face. At position p it is rotated by the angle p / theta^(2 i / K), so that the
product of a query and a key depends on the distance of their positions.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.attention import AttentionMask, SelfAttention
from bert_jax.models.layers.config import Activation, ComputeConfig
from bert_jax.models.layers.dropout import DropoutSeed, dropout
from bert_jax.models.layers.linear import layer_norm, linear, output_stddev
from bert_jax.models.layers.post_norm import NUM_DROPOUT_SITES, activate


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
    length: int, head_width: int, theta: float, position_ids: jax.Array | None
) -> RotaryTable:
    """Returns the table for positions 0 to L - 1, or for int32 `position_ids` [B, L]."""
    positions = jnp.arange(length)[None] if position_ids is None else position_ids
    angles = positions[:, :, None].astype(jnp.float32) * inverse_frequencies(head_width, theta)
    return RotaryTable(jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None])


class AttentionInputs(NamedTuple):
    """Holds what all layers with the same type of attention share: the mask and the rotations."""

    mask: AttentionMask
    rotary: RotaryTable


class RotarySelfAttention(SelfAttention):
    """Computes self-attention without biases, with queries and keys rotated by their positions."""

    def __init__(self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        stddev = output_stddev(config)
        super().__init__(config, compute, rngs, use_bias=False, output_stddev=stddev)

    def rotated(
        self,
        x_BLD: jax.Array,
        inputs: AttentionInputs,
        dropout_seed: DropoutSeed | None,
        *,
        return_attention_weights: bool,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns what `SelfAttention` returns."""
        B, L, D = x_BLD.shape
        head_shape = (B, L, -1, D // self.num_heads)
        q, k = (
            inputs.rotary.rotate(x.reshape(head_shape)).reshape(x.shape)
            for x in (self.query(x_BLD), self.key(x_BLD))
        )
        return self.attend(
            q,
            k,
            self.value(x_BLD),
            inputs.mask,
            dropout_seed,
            return_attention_weights=return_attention_weights,
        )


class PreNormDropouts(NamedTuple):
    """Holds the dropout rates of a layer: after attention, and inside the feed-forward layer."""

    attention_output: float
    feed_forward: float


class GatedFeedForward(nnx.Module):
    """Computes output(activation(intermediate(x)) * gate(x)) without biases (Shazeer 2020)."""

    def __init__(
        self,
        config: TransformerConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        dropout_rate: float,
    ):
        D, F = config.hidden_size, config.intermediate_size
        self.intermediate = linear(D, F, config, compute, rngs, use_bias=False)
        self.gate = linear(D, F, config, compute, rngs, use_bias=False)
        # Output kernels start smaller, because the residual stream adds up 2 N of their outputs.
        self.output = linear(
            F, D, config, compute, rngs, use_bias=False, stddev=output_stddev(config)
        )
        self.activation: Activation = config.hidden_act
        self.dropout_rate = dropout_rate

    def __call__(self, x_BLD: jax.Array, dropout_seed: DropoutSeed | None) -> jax.Array:
        """Maps [B, L, D] to [B, L, D]; dropout is applied to the gated activations."""
        gated = activate(self.intermediate(x_BLD), self.activation) * self.gate(x_BLD)
        return self.output(dropout(gated, self.dropout_rate, dropout_seed))


class PreNormBlock(nnx.Module):
    """Computes x + sublayer(norm(x)) for attention and for feed-forward, without biases.

    Attributes:
      attention_norm: exists unless `has_attention_norm` is False, as in the first layer of
        ModernBERT: its input is already normalized.
    """

    def __init__(
        self,
        config: TransformerConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        *,
        layer_type: str,
        dropouts: PreNormDropouts,
        has_attention_norm: bool = True,
    ):
        """Builds a layer that reads the attention inputs of `layer_type`."""
        if has_attention_norm:
            self.attention_norm = layer_norm(config, compute)
        self.attention = RotarySelfAttention(config, compute, rngs)
        self.feed_forward_norm = layer_norm(config, compute)
        self.feed_forward = GatedFeedForward(config, compute, rngs, dropouts.feed_forward)
        self.layer_type = layer_type
        self.has_attention_norm = has_attention_norm
        self.attention_output_dropout = dropouts.attention_output

    @property
    def kind(self) -> tuple[str, bool]:
        """Returns a value that is equal for blocks of equal structure."""
        return self.layer_type, self.has_attention_norm

    def __call__(
        self,
        x_BLD: jax.Array,
        inputs: Mapping[str, AttentionInputs],
        dropout_seeds: jax.Array | None,
        *,
        return_attention_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Applies the layer.

        Args:
          inputs: the attention inputs by type of layer.
          dropout_seeds: uint32 [NUM_DROPOUT_SITES, 2], or None to apply no dropout.

        Returns:
          The output [B, L, D], and the attention weights, float32 [B, H, L, L], or None unless
          `return_attention_weights`.
        """
        attn_seed, residual_seed, ffn_seed = (
            (None,) * NUM_DROPOUT_SITES if dropout_seeds is None else dropout_seeds
        )
        attn_out, attention_weights = self.attention.rotated(
            self.attention_norm(x_BLD) if self.has_attention_norm else x_BLD,
            inputs[self.layer_type],
            attn_seed,
            return_attention_weights=return_attention_weights,
        )
        x_BLD = x_BLD + dropout(attn_out, self.attention_output_dropout, residual_seed)
        x_BLD = x_BLD + self.feed_forward(self.feed_forward_norm(x_BLD), ffn_seed)
        return x_BLD, attention_weights
