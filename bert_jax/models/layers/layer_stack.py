"""Layers one after another: unrolled or scanned, with or without rematerialisation.

Parameters are kept a layer at a time ("layers/3/...") whatever the loop, so checkpoints, tables
and conversions never depend on it; a scan stacks them inside the step.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax import functional
from bert_jax.models.config import ComputeConfig, FullRemat, NoRemat, SaveDots, Scanned
from bert_jax.models.layers.attention import AttentionMask


def apply_layers(
    blocks: Iterable[nnx.Module],
    compute: ComputeConfig,
    x_BLD: jax.Array,
    mask: AttentionMask,
    dropout_seeds: jax.Array | None,
    *,
    output_hidden_states: bool,
    output_attentions: bool,
) -> tuple[jax.Array, list[jax.Array], list[jax.Array]]:
    """Runs blocks of equal structure, each f(x, mask, dropout_seeds,
    return_attention_weights=bool) -> (x, attention_weights).

    Returns the last output, then each layer's output and its weights if asked for, else [].

    Args:
      seeds: uint32 [N, sites, 2], or None to drop nothing.
    """
    split_blocks = [functional.split_module(block) for block in blocks]
    merge = split_blocks[0][1]

    def layer(x: jax.Array, inputs: tuple[Any, Any]) -> tuple[jax.Array, Any]:
        params, layer_seeds = inputs
        block = merge(params)
        x, attention_weights = block(  # type: ignore[operator]
            x, mask, layer_seeds, return_attention_weights=output_attentions
        )
        return x, (x if output_hidden_states else None, attention_weights)

    layer = _rematerialized(layer, compute)
    if isinstance(compute.layer_loop, Scanned):
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(p for p, _ in split_blocks))
        x_BLD, (states, attention_weights) = jax.lax.scan(layer, x_BLD, (stacked, dropout_seeds))
        return x_BLD, _unstack(states), _unstack(attention_weights)
    layer_outputs = []
    for index, (params, _) in enumerate(split_blocks):
        x_BLD, extra = layer(
            x_BLD, (params, None if dropout_seeds is None else dropout_seeds[index])
        )
        layer_outputs.append(extra)
    return (
        x_BLD,
        [state for state, _ in layer_outputs if state is not None],
        [
            attention_weights
            for _, attention_weights in layer_outputs
            if attention_weights is not None
        ],
    )


def _rematerialized(layer: Callable[..., Any], compute: ComputeConfig) -> Callable[..., Any]:
    # Inside a scan, CSE cannot undo rematerialisation, so the barrier against it is left out.
    prevent_cse = not isinstance(compute.layer_loop, Scanned)
    match compute.remat:
        case NoRemat():
            return layer
        case FullRemat():
            return jax.checkpoint(layer, prevent_cse=prevent_cse)
        case SaveDots():
            policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
            return jax.checkpoint(layer, prevent_cse=prevent_cse, policy=policy)


def _unstack(stacked: jax.Array | None) -> list[jax.Array]:
    return [] if stacked is None else list(stacked)
