"""Layers one after another: unrolled or scanned, with or without rematerialisation.

Parameters are kept a layer at a time ("layers/3/...") whatever the loop, so checkpoints, tables
and conversions never depend on it; a scan stacks them inside the step.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax import nn
from bert_jax.models.attention import Visible
from bert_jax.models.config import Compute, RematAllButDots, RematLayer, SaveAll, Scanned


def run_layers(
    blocks: Iterable[nnx.Module],
    compute: Compute,
    x_BLD: jax.Array,
    see: Visible,
    seeds: jax.Array | None,
    *,
    hidden_states: bool,
    attentions: bool,
) -> tuple[jax.Array, list[jax.Array], list[jax.Array]]:
    """Runs blocks of equal structure, each f(x, see, seeds, weights=bool) -> (x, weights).

    Returns the last output, then each layer's output and its weights if asked for, else [].

    Args:
      seeds: uint32 [N, sites, 2], or None to drop nothing.
    """
    split = [nn.functional(block) for block in blocks]
    rebuild = split[0][1]

    def layer(x: jax.Array, inputs: tuple[Any, Any]) -> tuple[jax.Array, Any]:
        params, layer_seeds = inputs
        block = rebuild(params)
        x, weights = block(x, see, layer_seeds, weights=attentions)  # type: ignore[operator]
        return x, (x if hidden_states else None, weights)

    layer = _rematerialised(layer, compute)
    if isinstance(compute.layers, Scanned):
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(p for p, _ in split))
        x_BLD, (states, weights) = jax.lax.scan(layer, x_BLD, (stacked, seeds))
        return x_BLD, _unstack(states), _unstack(weights)
    captured = []
    for index, (params, _) in enumerate(split):
        x_BLD, extra = layer(x_BLD, (params, None if seeds is None else seeds[index]))
        captured.append(extra)
    return (
        x_BLD,
        [state for state, _ in captured if state is not None],
        [weights for _, weights in captured if weights is not None],
    )


def _rematerialised(layer: Callable[..., Any], compute: Compute) -> Callable[..., Any]:
    # Inside a scan, CSE cannot undo rematerialisation, so the barrier against it is left out.
    guard = not isinstance(compute.layers, Scanned)
    match compute.remat:
        case SaveAll():
            return layer
        case RematLayer():
            return jax.checkpoint(layer, prevent_cse=guard)
        case RematAllButDots():
            policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
            return jax.checkpoint(layer, prevent_cse=guard, policy=policy)


def _unstack(stacked: jax.Array | None) -> list[jax.Array]:
    return [] if stacked is None else list(stacked)
