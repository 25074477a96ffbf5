"""Runs a stack of layers: unrolled or scanned, with or without rematerialization.

Parameters are stored one layer at a time ("layers/3/...") whatever the loop, so checkpoints, tables
and conversions do not depend on it. A scan stacks them inside the compiled step.
"""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax import functional
from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig, FullRemat, NoRemat, SaveDots, Scanned

LayerResult = tuple[jax.Array, tuple[jax.Array | None, jax.Array | None]]


class Block(Protocol):
    """Maps hidden states [B, L, D] to hidden states; see `PostNormBlock.__call__`."""

    def __call__(
        self,
        x_BLD: jax.Array,
        mask: AttentionMask,
        dropout_seeds: jax.Array | None,
        *,
        return_attention_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]: ...


def apply_layers(
    blocks: nnx.List,
    compute: ComputeConfig,
    x_BLD: jax.Array,
    mask: AttentionMask,
    dropout_seeds: jax.Array | None,
    *,
    output_hidden_states: bool,
    output_attentions: bool,
) -> tuple[jax.Array, list[jax.Array], list[jax.Array]]:
    """Runs the blocks, which have the same structure, one after another.

    Args:
      blocks: the N layers, each a `Block`.
      dropout_seeds: uint32 [N, sites, 2], or None to apply no dropout.

    Returns:
      The last output [B, L, D]; the output of each layer if `output_hidden_states`, else []; the
      attention weights of each layer if `output_attentions`, else [].
    """

    def run_block(block: Block, x: jax.Array, layer_seeds: jax.Array | None) -> LayerResult:
        x, weights = block(x, mask, layer_seeds, return_attention_weights=output_attentions)
        return x, (x if output_hidden_states else None, weights)

    seeds = [None] * len(blocks) if dropout_seeds is None else dropout_seeds
    if isinstance(compute.layer_loop, Scanned):
        x_BLD, (states, weights) = _scan(run_block, blocks, compute, x_BLD, dropout_seeds)
        return x_BLD, _unstack(states), _unstack(weights)
    if not isinstance(compute.remat, NoRemat):
        run_block = _rematerialized_block(run_block, blocks, compute)
    states, weights = [], []
    for index, block in enumerate(blocks):
        x_BLD, (state, layer_weights) = run_block(block, x_BLD, seeds[index])
        states.append(state)
        weights.append(layer_weights)
    return (
        x_BLD,
        [state for state in states if state is not None],
        [each for each in weights if each is not None],
    )


def _scan(
    run_block: Callable[..., LayerResult],
    blocks: nnx.List,
    compute: ComputeConfig,
    x_BLD: jax.Array,
    dropout_seeds: jax.Array | None,
) -> tuple[jax.Array, Any]:
    params = [functional.split(block)[0] for block in blocks]
    _, merge = functional.split(blocks[0])

    def layer(x: jax.Array, inputs: tuple[Any, Any]) -> LayerResult:
        layer_params, layer_seeds = inputs
        return run_block(merge(layer_params), x, layer_seeds)

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    # Inside a scan, CSE cannot undo rematerialization, so the barrier against it is left out.
    layer = _rematerialized(layer, compute, prevent_cse=False)
    return jax.lax.scan(layer, x_BLD, (stacked, dropout_seeds))


def _rematerialized_block(
    run_block: Callable[..., LayerResult], blocks: nnx.List, compute: ComputeConfig
) -> Callable[..., LayerResult]:
    _, merge = functional.split(blocks[0])

    # `jax.checkpoint` needs the parameters as an argument, not inside a module.
    def layer(params: Any, x: jax.Array, layer_seeds: Any) -> LayerResult:
        return run_block(merge(params), x, layer_seeds)

    layer = _rematerialized(layer, compute, prevent_cse=True)
    return lambda block, x, seeds: layer(functional.split(block)[0], x, seeds)


def _rematerialized(
    layer: Callable[..., Any], compute: ComputeConfig, *, prevent_cse: bool
) -> Callable[..., Any]:
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
