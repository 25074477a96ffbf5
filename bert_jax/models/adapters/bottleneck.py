"""Computes bottleneck adapters: two small dense layers with an activation, before a LayerNorm.

The parameters are under the path of the norm that follows the adapted sublayer, `attention_norm` or
`feed_forward_norm`: `down/kernel` [D, M], `down/bias` [M], `up/kernel` [M, D], `up/bias` [D].
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.adapters.config import HoulsbyAdapter, PfeifferAdapter
from bert_jax.models.adapters.modules import (
    Implementation,
    Leaves,
    Modules,
    Shapes,
    replace_submodule,
    rowwise_dense,
    rowwise_vector,
    submodule,
)
from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.config import Activation
from bert_jax.models.layers.post_norm import PostNormBlock, activate
from bert_jax.params.paths import LAYER_PREFIX

Method = HoulsbyAdapter | PfeifferAdapter


def _shapes(method: Method, modules: Modules, config: TransformerConfig) -> Shapes:
    match method:
        case HoulsbyAdapter():
            norms, size = ("attention_norm", "feed_forward_norm"), method.size
        case PfeifferAdapter():
            norms, size = ("feed_forward_norm",), config.hidden_size // method.reduction_factor
            if not size:
                raise ConfigError(
                    f"train.tuning.method.reduction_factor is {method.reduction_factor}, but the "
                    f"encoder has width {config.hidden_size}; expected at most the width"
                )
    width = config.hidden_size
    leaves = {
        "down/kernel": (width, size),
        "down/bias": (size,),
        "up/kernel": (size, width),
        "up/bias": (width,),
    }
    return {
        path: dict(leaves)
        for path in modules
        if (match := LAYER_PREFIX.match(path)) and path[match.end() :] in norms
    }


def _init(
    method: Method, shapes: Mapping[str, tuple[int, ...]], key: jax.Array
) -> dict[str, jax.Array]:
    match method:
        case HoulsbyAdapter():
            initializer = nnx.initializers.truncated_normal(1e-3)
        case PfeifferAdapter():
            initializer = nnx.initializers.normal(0.02)
    values: dict[str, jax.Array] = {}
    for index, (name, shape) in enumerate(shapes.items()):
        init = initializer if name.endswith("kernel") else nnx.initializers.zeros
        values[name] = init(jax.random.fold_in(key, index), shape, jnp.float32)
    return values


class Bottleneck(nnx.Module):
    """Computes up(activation(down(x)))."""

    def __init__(self, leaves: Leaves, activation: Activation):
        self.down_kernel, self.down_bias, self.up_kernel, self.up_bias = (
            nnx.Param(leaves[f"{layer}/{name}"])
            for layer in ("down", "up")
            for name in ("kernel", "bias")
        )
        self.activation: Activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., D] to [..., D] in the dtype of `x`."""
        hidden = rowwise_dense(x, self.down_kernel[...], x.dtype)
        hidden = activate(hidden + rowwise_vector(self.down_bias[...], x), self.activation)
        y = rowwise_dense(hidden, self.up_kernel[...], x.dtype)
        return (y + rowwise_vector(self.up_bias[...], x)).astype(x.dtype)


# As in the reference implementations: Houlsby's adapters have the tanh form of GELU and start from
# deviations of 1e-3; Pfeiffer's apply the LayerNorm twice.
class HoulsbyNorm(nnx.Module):
    """Computes norm(residual + y + bottleneck(y)) of the output y of a sublayer."""

    def __init__(self, base: Any, leaves: Leaves):
        self.base, self.bottleneck = base, Bottleneck(leaves, "gelu_tanh")

    def add(self, residual: jax.Array, y: jax.Array) -> jax.Array:
        """Maps two arrays [B, L, D] to [B, L, D]."""
        return self.base.add(residual, y + self.bottleneck(y))


class PfeifferNorm(nnx.Module):
    """Computes norm(h + bottleneck(norm(h))) with h = residual + y, and one norm used twice."""

    def __init__(self, base: Any, leaves: Leaves):
        self.base, self.bottleneck = base, Bottleneck(leaves, "relu")

    def add(self, residual: jax.Array, y: jax.Array) -> jax.Array:
        """Maps two arrays [B, L, D] to [B, L, D]."""
        return self.base.add(residual + y, self.bottleneck(self.base.add(residual, y)))


def _install(method: Method, network: Any, adapter: Modules) -> None:
    norm = HoulsbyNorm if isinstance(method, HoulsbyAdapter) else PfeifferNorm
    for path, leaves in adapter.items():
        block = submodule(network, path.rpartition("/")[0])
        if not isinstance(block, PostNormBlock):
            raise ConfigError(
                f"train.tuning.method is {type(method).__name__}, which is defined for layers with "
                f"the norm after each sublayer, but those of {type(network.encoder).__name__} have "
                "it before; expected another method, such as LoRA"
            )
        replace_submodule(network, path, norm(submodule(network, path), leaves))


IMPLEMENTATION = Implementation(_shapes, _init, _install)
