"""Runs a stack of layers: unrolled or scanned, with or without rematerialization.

Parameters are stored one layer at a time ("layers/3/...") whatever the loop, so that a path means
the same in checkpoints, tables and conversions. A scan stacks them inside the compiled step.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.params import functional

LayerOutput = tuple[jax.Array | None, jax.Array | None]
"""The output of a layer and its attention weights, each None unless it was asked for."""

RunBlock = Callable[[Any, jax.Array, jax.Array | None], tuple[jax.Array, LayerOutput]]
"""Maps (block, input, dropout seeds) to the input of the next block, and what is returned of it."""


class Span(NamedTuple):
    """Holds which layers one scan runs: from `start` on, `repeats` equal groups of `period` layers.

    A scan compiles one group. The layers of all groups are alike but for parameters, or they are
    the same modules if `are_shared`.
    """

    start: int
    period: int
    repeats: int
    are_shared: bool = False


class TokenSelection(NamedTuple):
    """Holds which tokens of each sequence the middle layers read (token dropping).

    Attributes:
      positions: int32 [B, K], the positions of these tokens in ascending order.
      first_layer: the first of the middle layers. The last layer follows them.
    """

    positions: jax.Array
    first_layer: int


def run_layers(
    blocks: Sequence[Any],
    compute: ComputeConfig,
    x_BLD: jax.Array,
    attention_inputs: Any,
    dropout_seeds: jax.Array | None,
    *,
    output_hidden_states: bool = False,
    output_attentions: bool = False,
    spans: Sequence[Span] | None = None,
    selection: TokenSelection | None = None,
) -> EncoderOutput:
    """Runs the blocks one after another.

    Args:
      blocks: the N layers, each a `PostNormBlock` or a class with the same interface; a block that
        stands in several places shares its parameters.
      x_BLD: the input of the first layer.
      attention_inputs: the second argument of every block: an `AttentionMask` for `PostNormBlock`.
      dropout_seeds: uint32 [N, sites, 2], or None to apply no dropout.
      spans: what `"scanned"` runs in scans, in order; None for one scan over all blocks, which are
        alike. Blocks outside of the spans are compiled one by one.
      selection: the tokens that the middle layers read; None for all. Only the last output is
        returned then.

    Returns:
      The last output, `x_BLD` and the output of each layer if `output_hidden_states`, and the
      attention weights of each layer if `output_attentions`.
    """

    if selection is not None:
        return EncoderOutput(
            _drop_tokens(blocks, compute, x_BLD, attention_inputs, dropout_seeds, selection, spans)
        )

    def run_block(
        block: Any, x: jax.Array, seeds: jax.Array | None
    ) -> tuple[jax.Array, LayerOutput]:
        x, weights = block(x, attention_inputs, seeds, return_attention_weights=output_attentions)
        return x, (x if output_hidden_states else None, weights)

    if compute.layer_loop == "unrolled":
        spans = ()
    elif spans is None:
        spans = (Span(0, 1, len(blocks)),)
    span_at = {span.start: span for span in spans}
    outputs: list[LayerOutput] = []
    index, x = 0, x_BLD
    while index < len(blocks):
        if (span := span_at.get(index)) is not None:
            end = index + span.period * span.repeats
            seeds = None if dropout_seeds is None else dropout_seeds[index:end]
            x, span_outputs = _scan(run_block, blocks[index:end], span, compute, x, seeds)
            outputs += span_outputs
            index = end
            continue
        seeds = None if dropout_seeds is None else dropout_seeds[index]
        if compute.remat == "none":
            x, output = run_block(blocks[index], x, seeds)
        else:
            params, layer = _pure_layer(run_block, blocks[index])
            x, output = _rematerialized(layer, compute, prevent_cse=True)(params, x, seeds)
        outputs.append(output)
        index += 1
    states = tuple(state for state, _ in outputs if state is not None)
    return EncoderOutput(
        x,
        (x_BLD, *states) if output_hidden_states else (),
        tuple(weights for _, weights in outputs if weights is not None),
    )


# In the authors' code the first of the middle layers still reads the keys and values of all tokens
# (TF Model Garden, `token_dropping/encoder.py`). Here it does not, so that the layers of every
# family can be used as they are.
def _drop_tokens(
    blocks: Sequence[Any],
    compute: ComputeConfig,
    x_BLD: jax.Array,
    attention_inputs: Any,
    dropout_seeds: jax.Array | None,
    selection: TokenSelection,
    spans: Sequence[Span] | None,
) -> jax.Array:
    """Runs the middle layers on selected tokens, and the first ones and the last one on all."""

    def run(start: int, end: int, x: jax.Array, inputs: Any) -> jax.Array:
        return run_layers(
            blocks[start:end],
            compute,
            x,
            inputs,
            None if dropout_seeds is None else dropout_seeds[start:end],
            # The given spans are those of the whole stack.
            spans=None if spans is None else (),
        ).last_hidden_state

    first, last, positions = selection.first_layer, len(blocks) - 1, selection.positions
    x_BLD = run(0, first, x_BLD, attention_inputs)
    selected_inputs = jax.tree.map(
        lambda mask: mask.at(positions),
        attention_inputs,
        is_leaf=lambda each: isinstance(each, AttentionMask),
    )
    x_BKD = jnp.take_along_axis(x_BLD, positions[..., None], axis=1)
    x_BKD = run(first, last, x_BKD, selected_inputs)
    # The selected token number i is at positions[i], so their number up to a position gives i + 1:
    # a gather, which costs less than scattering them.
    is_selected = jnp.any(jnp.arange(x_BLD.shape[1]) == positions[..., None], axis=1)
    index = jnp.maximum(jnp.cumsum(is_selected, axis=1) - 1, 0)
    restored = jnp.take_along_axis(x_BKD, index[..., None], axis=1)
    x_BLD = jnp.where(is_selected[..., None], restored, x_BLD)
    return run(last, last + 1, x_BLD, attention_inputs)


def _scan(
    run_block: RunBlock,
    blocks: Sequence[Any],
    span: Span,
    compute: ComputeConfig,
    x_BLD: jax.Array,
    dropout_seeds: jax.Array | None,
) -> tuple[jax.Array, list[LayerOutput]]:
    """Runs the blocks of a span in one loop; returns the outputs of every block."""
    period, repeats = span.period, span.repeats
    pure_layers = [
        _pure_layer(run_block, block) for block in (blocks[:period] if span.are_shared else blocks)
    ]
    params = [layer_params for layer_params, _ in pure_layers]
    layers = [layer for _, layer in pure_layers[:period]]
    stacked = None  # if they are shared: the scan sums the gradients of its iterations
    if not span.are_shared:
        # The copy costs less than 1 % of a step at BERT's batch sizes.
        stacked = [
            jax.tree.map(lambda *leaves: jnp.stack(leaves), *params[i::period])
            for i in range(period)
        ]
        layers = [_rematerialized(layer, compute, prevent_cse=False) for layer in layers]

    def run_group(x: jax.Array, inputs: tuple[Any, Any]) -> tuple[jax.Array, list[LayerOutput]]:
        group_params, group_seeds = inputs
        outputs: list[LayerOutput] = []
        for i, layer in enumerate(layers):
            layer_params = params[i] if group_params is None else group_params[i]
            x, output = layer(layer_params, x, None if group_seeds is None else group_seeds[i])
            outputs.append(output)
        return x, outputs

    if span.are_shared:  # ALBERT saves the input of a group only, not the input of each layer in it
        run_group = _rematerialized(run_group, compute, prevent_cse=False)
    if dropout_seeds is not None:
        dropout_seeds = dropout_seeds.reshape(repeats, period, *dropout_seeds.shape[1:])
    x_BLD, group_outputs = jax.lax.scan(run_group, x_BLD, (stacked, dropout_seeds), length=repeats)
    return x_BLD, [
        jax.tree.map(lambda leaf, repeat=repeat: leaf[repeat], output)
        for repeat in range(repeats)
        for output in group_outputs
    ]


def _pure_layer(
    run_block: RunBlock, block: Any
) -> tuple[functional.Params, Callable[..., tuple[jax.Array, LayerOutput]]]:
    """Splits a block into its parameters and a function of (parameters, input, seeds).

    Scans and `jax.checkpoint` need the parameters as an argument, not inside a module.
    """
    params, merge = functional.split(block)

    def layer(
        params: functional.Params, x: jax.Array, seeds: jax.Array | None
    ) -> tuple[jax.Array, LayerOutput]:
        return run_block(merge(params), x, seeds)

    return params, layer


def _rematerialized(
    function: Callable[..., Any], compute: ComputeConfig, *, prevent_cse: bool
) -> Callable[..., Any]:
    """Wraps a function so that the backward pass recomputes what `compute.remat` does not save.

    Inside a scan, CSE cannot undo this, so the barrier against it is left out.
    """
    match compute.remat:
        case "none":
            return function
        case "full":
            return jax.checkpoint(function, prevent_cse=prevent_cse)
        case "save_dots":
            policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
            return jax.checkpoint(function, prevent_cse=prevent_cse, policy=policy)


# Of ModernBERT's 22 layers the first has no norm before attention and is compiled alone; the others
# are seven groups of two local layers and a global one.
def repeating_span(kinds: Sequence[Hashable]) -> Span:
    """Finds the layers that one scan can run: the span that leaves the fewest layers to compile.

    Args:
      kinds: one value for each layer, equal for layers of equal structure.
    """
    num_layers = len(kinds)
    best, fewest = Span(0, num_layers, 1), num_layers
    for start in range(num_layers):
        for period in range(1, num_layers - start + 1):
            if start + period >= fewest:
                break
            group, repeats = kinds[start : start + period], 1
            while kinds[(i := start + repeats * period) : i + period] == group:
                repeats += 1
            num_compiled = num_layers - period * (repeats - 1)
            if num_compiled < fewest:
                best, fewest = Span(start, period, repeats), num_compiled
    return best


def with_final_norm(output: EncoderOutput, norm: Callable[[jax.Array], jax.Array]) -> EncoderOutput:
    """Normalizes the last hidden state, also among all hidden states, as in Hugging Face."""
    last = norm(output.last_hidden_state)
    hidden_states = output.hidden_states and (*output.hidden_states[:-1], last)
    return EncoderOutput(last, hidden_states, output.attentions)
