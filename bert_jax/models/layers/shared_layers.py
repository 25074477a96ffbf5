"""Runs layers that share parameters, as in ALBERT: groups of layers, each applied several times."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.transformer import (
    LayerResult,
    LayersOutput,
    apply_layers,
    block_runner,
    rematerialized,
    unstack,
)
from bert_jax.params import functional


# Parameters are stored once, and gradients of all applications are summed in float32. The layers of
# a group have one depth for layer-wise rates, gradual unfreezing and `reinit_layers`, because one
# parameter has one rate. If any parameter of a group is trained, the backward pass goes through all
# applications.
def apply_shared_layers(
    groups: Sequence[Sequence[Any]],
    applications: Sequence[int],
    compute: ComputeConfig,
    x_BLD: jax.Array,
    mask: AttentionMask,
    dropout_seeds: jax.Array | None,
    *,
    output_hidden_states: bool,
    output_attentions: bool,
) -> LayersOutput:
    """Runs groups of blocks, each group several times in a row with the same parameters.

    Every application of a block counts as a layer and has its own dropout. `"scanned"` compiles one
    application of each group.

    Args:
      groups: the blocks of each group, the same number in all groups.
      applications: how many times each group is applied.
      dropout_seeds: uint32 [N, sites, 2], N being the number of applications of blocks, or None to
        apply no dropout.

    Returns:
      What `apply_layers` returns.
    """
    if compute.layer_loop != "scanned":
        repeated = zip(groups, applications, strict=True)
        return apply_layers(
            [block for group, count in repeated for _ in range(count) for block in group],
            compute,
            x_BLD,
            mask,
            dropout_seeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
    run_block = block_runner(mask, output_hidden_states, output_attentions)
    states: list[jax.Array] = []
    weights: list[jax.Array] = []
    start = 0
    for group, count in zip(groups, applications, strict=True):
        num_layers = count * len(group)
        seeds = None if dropout_seeds is None else dropout_seeds[start : start + num_layers]
        x_BLD, outputs = _scan_group(run_block, group, count, compute, x_BLD, seeds)
        states += _interleave([state for state, _ in outputs])
        weights += _interleave([layer_weights for _, layer_weights in outputs])
        start += num_layers
    return x_BLD, states, weights


def _scan_group(
    run_block: Callable[..., LayerResult],
    group: Sequence[Any],
    count: int,
    compute: ComputeConfig,
    x_BLD: jax.Array,
    dropout_seeds: jax.Array | None,
) -> tuple[jax.Array, Any]:
    """Applies a group `count` times in one scan, whose iterations all use the same parameters."""
    params = [functional.split(block)[0] for block in group]
    _, merge = functional.split(group[0])

    def apply_group(all_params: Any, x: jax.Array, seeds: jax.Array | None) -> tuple[Any, Any]:
        outputs = []
        for index, layer_params in enumerate(all_params):
            layer_seeds = None if seeds is None else seeds[index]
            x, output = run_block(merge(layer_params), x, layer_seeds)
            outputs.append(output)
        return x, outputs

    if dropout_seeds is not None:
        dropout_seeds = dropout_seeds.reshape(count, len(group), *dropout_seeds.shape[1:])
    apply_group = rematerialized(apply_group, compute, prevent_cse=False)
    # The parameters are not stacked: the scan sums their gradients over its iterations.
    return jax.lax.scan(
        lambda x, seeds: apply_group(params, x, seeds), x_BLD, dropout_seeds, length=count
    )


def _interleave(stacked: Sequence[jax.Array | None]) -> list[jax.Array]:
    """Orders what each layer of a group returned [applications, ...] as the layers were run."""
    per_layer = [unstack(outputs) for outputs in stacked]
    return [output for application in zip(*per_layer, strict=True) for output in application]
