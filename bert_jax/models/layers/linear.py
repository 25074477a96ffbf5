"""The leaf layers that all families share, with BERT's initialisation and our dtypes."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.config import BertConfig, ComputeConfig
from bert_jax.models.layers.matmul import dense


class Linear(nnx.Linear):
    """A dense layer, by `models/layers/matmul.py`: sums in float32, forward and backward."""

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        """[..., inputs] -> [..., outputs] in `dtype`."""
        assert self.bias is not None and self.dtype is not None
        dtype = jnp.dtype(self.dtype)
        product: jax.Array = dense(x, self.kernel[...], self.bias[...], 0, dtype)
        return product.astype(dtype)


def linear(
    in_features: int, out_features: int, config: BertConfig, compute: ComputeConfig, rngs: nnx.Rngs
) -> Linear:
    """A dense layer: kernel [inputs, outputs] and bias in float32, product in `compute.dtype`."""
    return Linear(
        in_features,
        out_features,
        dtype=jnp.dtype(compute.dtype),
        param_dtype=jnp.float32,
        kernel_init=initializer(config),
        rngs=rngs,
    )


class LayerNorm(nnx.Module):
    """LayerNorm over the last axis (Ba et al. 2016): statistics in float32, result in `dtype`.

    In float32 the variance is the mean squared deviation: E[x^2] - E[x]^2, which is used otherwise,
    loses the digits that parity needs.
    (`nnx.LayerNorm` does not run in bfloat16 under strict dtype promotion.)
    """

    def __init__(self, num_features: int, epsilon: float, dtype: str, rngs: nnx.Rngs):
        del rngs  # nothing here is random
        self.scale = nnx.Param(jnp.ones((num_features,), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((num_features,), jnp.float32))
        self.epsilon = epsilon
        self.dtype = jnp.dtype(dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., D] -> [..., D] in `dtype`."""
        x = x.astype(jnp.float32)
        mean = jnp.mean(x, axis=-1, keepdims=True)
        centered = x - mean
        if self.dtype == jnp.float32:
            variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
        else:  # one pass over x; what it loses is far below what x has lost to its dtype
            squares = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
            variance = jnp.maximum(squares - jnp.square(mean), 0.0)
        normalized = centered * jax.lax.rsqrt(variance + self.epsilon)
        return (normalized * self.scale[...] + self.bias[...]).astype(self.dtype)


def layer_norm(config: BertConfig, compute: ComputeConfig, rngs: nnx.Rngs) -> LayerNorm:
    """The LayerNorm of a config."""
    return LayerNorm(config.hidden_size, config.layer_norm_eps, compute.dtype, rngs)


def embedding(
    num_embeddings: int, config: BertConfig, rngs: nnx.Rngs, init: nnx.Initializer | None = None
) -> nnx.Embed:
    """A table [rows, D] in float32, read by `lookup`; `init` None is BERT's initialiser."""
    return nnx.Embed(
        num_embeddings,
        config.hidden_size,
        param_dtype=jnp.float32,
        embedding_init=init or initializer(config),
        rngs=rngs,
    )


def initializer(config: BertConfig) -> nnx.Initializer:
    """Normal truncated at two standard deviations of the untruncated law, as in BERT's release."""
    return nnx.initializers.truncated_normal(config.initializer_range)
