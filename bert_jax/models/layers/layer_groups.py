"""Runs a stack of layers of different structure; a scan runs equal groups of layers (ModernBERT).

The first layer of ModernBERT has no norm before attention, and two layers with local attention
follow each one with global attention. With `"scanned"`, the first layer is compiled by itself, and
the others as one loop over groups of three.
"""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.transformer import (
    LayerResult,
    LayersOutput,
    apply_layers,
    block_runner,
    rematerialized,
)
from bert_jax.params import functional


def apply_layer_groups(
    blocks: Sequence[Any],
    compute: ComputeConfig,
    x_BLD: jax.Array,
    attention_inputs: Any,
    dropout_seeds: jax.Array | None,
    *,
    output_hidden_states: bool,
    output_attentions: bool,
) -> LayersOutput:
    """Runs the blocks one after another, as `apply_layers` does.

    Args:
      blocks: the N layers; the attribute `kind` of two blocks is equal if their structure is.
      attention_inputs: the second argument of every block.
      dropout_seeds: uint32 [N, sites, 2], or None to apply no dropout.
    """
    start, period, repeats = (len(blocks), 0, 0)
    if compute.layer_loop == "scanned":
        start, period, repeats = repeating_span([block.kind for block in blocks])
    end = start + period * repeats
    unrolled = dataclasses.replace(compute, layer_loop="unrolled")
    states: list[jax.Array] = []
    weights: list[jax.Array] = []

    def run_unrolled(x: jax.Array, first: int, last: int) -> jax.Array:
        x, more_states, more_weights = apply_layers(
            blocks[first:last],
            unrolled,
            x,
            attention_inputs,
            None if dropout_seeds is None else dropout_seeds[first:last],
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        states.extend(more_states)
        weights.extend(more_weights)
        return x

    x_BLD = run_unrolled(x_BLD, 0, start)
    if repeats:
        run_block = block_runner(attention_inputs, output_hidden_states, output_attentions)
        seeds = None if dropout_seeds is None else dropout_seeds[start:end]
        x_BLD, outputs = _scan_groups(run_block, blocks[start:end], period, compute, x_BLD, seeds)
        states.extend(state for state, _ in outputs if state is not None)
        weights.extend(weight for _, weight in outputs if weight is not None)
    return run_unrolled(x_BLD, end, len(blocks)), states, weights


# Of ModernBERT's 22 layers the first has no norm before attention and is compiled alone; the others
# are seven groups of two local layers and a global one.
def repeating_span(kinds: Sequence[Hashable]) -> tuple[int, int, int]:
    """Finds the layers that one scan can run: the span that leaves the fewest layers to compile.

    Returns:
      (start, period, repeats): the layers from `start` on are `repeats` equal groups of `period`
      layers. The scan compiles one group; layers before and after it are compiled one by one.
    """
    num_layers = len(kinds)
    best, fewest = (0, num_layers, 1), num_layers
    for start in range(num_layers):
        for period in range(1, num_layers - start + 1):
            if start + period >= fewest:
                break
            group, repeats = kinds[start : start + period], 1
            while kinds[(i := start + repeats * period) : i + period] == group:
                repeats += 1
            num_compiled = num_layers - period * (repeats - 1)
            if num_compiled < fewest:
                best, fewest = (start, period, repeats), num_compiled
    return best


def _scan_groups(
    run_block: Callable[..., LayerResult],
    blocks: Sequence[Any],
    period: int,
    compute: ComputeConfig,
    x_BLD: jax.Array,
    dropout_seeds: jax.Array | None,
) -> tuple[jax.Array, list[Any]]:
    """Runs equal groups of `period` blocks in one loop; returns the outputs of every block."""
    repeats = len(blocks) // period

    def make_layer(block: Any) -> Callable[..., LayerResult]:
        _, merge = functional.split(block)

        def layer(params: Any, x: jax.Array, layer_seeds: jax.Array | None) -> LayerResult:
            return run_block(merge(params), x, layer_seeds)

        # Inside a scan, CSE cannot undo rematerialization, so the barrier against it is left out.
        return rematerialized(layer, compute, prevent_cse=False)

    layers = [make_layer(block) for block in blocks[:period]]

    def run_group(x: jax.Array, inputs: tuple[Any, Any]) -> tuple[jax.Array, list[Any]]:
        params, seeds = inputs
        outputs: list[Any] = []
        for i, layer in enumerate(layers):
            x, output = layer(params[i], x, None if seeds is None else seeds[i])
            outputs.append(output)
        return x, outputs

    params = [functional.split(block)[0] for block in blocks]
    stacked = [
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *params[i::period]) for i in range(period)
    ]
    seeds = dropout_seeds
    if seeds is not None:
        seeds = seeds.reshape(repeats, period, *seeds.shape[1:])
    x_BLD, group_outputs = jax.lax.scan(run_group, x_BLD, (stacked, seeds))
    return x_BLD, [
        jax.tree.map(lambda leaf, repeat=repeat: leaf[repeat], outputs)
        for repeat in range(repeats)
        for outputs in group_outputs
    ]
