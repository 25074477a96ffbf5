"""Defines the leaf layers of all families: linear, LayerNorm, embedding table; BERT's init."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.matmul import dense


class Linear(nnx.Linear):
    """Computes a dense layer with float32 sums, forward and backward.

    `nnx.Linear` with another product: autodiff of the stock one either rounds gradients to bfloat16
    or multiplies in float32 (see `layers/matmul.py`).
    """

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        """Maps [..., inputs] to [..., outputs] in the compute dtype."""
        assert self.bias is not None and self.dtype is not None
        dtype = jnp.dtype(self.dtype)
        product: jax.Array = dense(x, self.kernel[...], self.bias[...], dtype)
        return product.astype(dtype)


def linear(
    in_features: int,
    out_features: int,
    config: TransformerConfig,
    compute: ComputeConfig,
    rngs: nnx.Rngs,
) -> Linear:
    """Builds a dense layer with a kernel [inputs, outputs] and a bias, both float32."""
    return Linear(
        in_features,
        out_features,
        dtype=jnp.dtype(compute.dtype),
        param_dtype=jnp.float32,
        kernel_init=initializer(config),
        rngs=rngs,
    )


class LayerNorm(nnx.Module):
    """Normalizes the last axis (Ba et al. 2016): statistics in float32, result in `dtype`.

    Replaces `nnx.LayerNorm`, which fails in bfloat16 under strict dtype promotion.
    """

    def __init__(self, num_features: int, epsilon: float, dtype: str):
        self.scale = nnx.Param(jnp.ones((num_features,), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((num_features,), jnp.float32))
        self.epsilon = epsilon
        self.dtype = jnp.dtype(dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., D] to [..., D] in `dtype`."""
        x = x.astype(jnp.float32)
        mean = jnp.mean(x, axis=-1, keepdims=True)
        centered = x - mean
        if self.dtype == jnp.float32:
            # E[x^2] - E[x]^2 loses digits that parity with other implementations needs.
            variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
        else:  # one pass over x; its rounding is far below that of bfloat16 inputs
            squares = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
            variance = jnp.maximum(squares - jnp.square(mean), 0.0)
        normalized = centered * jax.lax.rsqrt(variance + self.epsilon)
        return (normalized * self.scale[...] + self.bias[...]).astype(self.dtype)


def layer_norm(
    config: TransformerConfig, compute: ComputeConfig, num_features: int | None = None
) -> LayerNorm:
    """Builds the LayerNorm of a config, over D features or another number of them."""
    return LayerNorm(num_features or config.hidden_size, config.layer_norm_eps, compute.dtype)


def embedding(
    num_embeddings: int,
    config: TransformerConfig,
    rngs: nnx.Rngs,
    init: nnx.Initializer | None = None,
) -> nnx.Embed:
    """Builds a table [num_embeddings, E] in float32; `init` None is BERT's initializer.

    Read it with `embedding_lookup`, whose gradient is summed in float32.
    """
    return nnx.Embed(
        num_embeddings,
        config.word_embedding_size,
        param_dtype=jnp.float32,
        embedding_init=init or initializer(config),
        rngs=rngs,
    )


def initializer(config: TransformerConfig) -> nnx.Initializer:
    """Returns BERT's initializer: normal, truncated at two standard deviations."""
    return nnx.initializers.truncated_normal(config.initializer_range)
