"""Computes IA3: trained vectors that scale the outputs or inputs of dense layers.

The parameter is `ia3`, [out] or [in], which starts at one. As in peft, a scaled output includes the
bias. Layers called "output" scale their input, all others their output.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.adapters.config import IA3
from bert_jax.models.adapters.modules import (
    Implementation,
    Leaves,
    Modules,
    Shapes,
    replace_submodule,
    rowwise_vector,
    select_layers,
    submodule,
)
from bert_jax.models.config import TransformerConfig

_TARGETS = {
    "paper": ("key", "value", "feed_forward/output"),
    "peft": ("key", "value", "attention/output", "feed_forward/output"),
}


def _scales_input(path: str) -> bool:
    return path.endswith("/output")


def _shapes(method: IA3, modules: Modules, config: TransformerConfig) -> Shapes:
    del config
    return {
        path: {"ia3": (modules[path]["kernel"].shape[0 if _scales_input(path) else 1],)}
        for path in select_layers(_TARGETS[method.selection], modules)
    }


def _init(
    method: IA3, shapes: Mapping[str, tuple[int, ...]], key: jax.Array
) -> dict[str, jax.Array]:
    del method, key
    return {name: jnp.ones(shape, jnp.float32) for name, shape in shapes.items()}


class IA3Linear(nnx.Module):
    """Scales the input or the output of a dense layer by a trained vector."""

    def __init__(self, base: Any, ia3: Any, *, scales_input: bool):
        self.base, self.scales_input = base, scales_input
        self.ia3 = nnx.Param(ia3)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., in] to [..., out] in the compute dtype."""
        if self.scales_input:
            return self.base(x * rowwise_vector(self.ia3[...], x).astype(x.dtype))
        y = self.base(x)
        return y * rowwise_vector(self.ia3[...], y).astype(y.dtype)


def _install(method: IA3, network: Any, adapter: Modules) -> None:
    del method
    for path, leaves in adapter.items():
        base, scales_input = submodule(network, path), _scales_input(path)
        replace_submodule(network, path, IA3Linear(base, leaves["ia3"], scales_input=scales_input))


def _merge(method: IA3, path: str, leaves: Leaves, base: Leaves) -> dict[str, Any]:
    del method
    scale = leaves["ia3"]
    if _scales_input(path):
        return {**base, "kernel": base["kernel"] * scale[:, None]}
    merged = {**base, "kernel": base["kernel"] * scale}
    return {**merged, "bias": base["bias"] * scale} if "bias" in base else merged


IMPLEMENTATION = Implementation(_shapes, _init, _install, _merge)
