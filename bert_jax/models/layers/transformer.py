"""Computes a transformer layer, and runs a stack of layers.

A layer is attention and feed-forward, each with residual and norm. The stack is unrolled or
scanned, with or without rematerialization. Parameters are stored one layer at a time
("layers/3/...") whatever the loop, so checkpoints, tables and conversions do not depend on it. A
scan stacks them inside the compiled step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.attention import AttentionMask, SelfAttention
from bert_jax.models.layers.config import (
    Activation,
    ComputeConfig,
)
from bert_jax.models.layers.dropout import dropout
from bert_jax.models.layers.linear import layer_norm, linear
from bert_jax.params import functional

NUM_DROPOUT_SITES = 3
"""Number of dropouts in a layer: attention weights, attention output, feed-forward output."""


def gelu(x: jax.Array) -> jax.Array:
    """Computes the exact GELU, x times the standard normal CDF of x, with erf in float32.

    Hugging Face's GELU uses erf, too. `jax.nn.gelu` uses erfc, which is more exact in the far left
    tail and takes half as much time again.
    """
    x_float32 = x.astype(jnp.float32)
    return (x_float32 * (0.5 + 0.5 * jax.lax.erf(x_float32 * 0.5**0.5))).astype(x.dtype)


def activate(x: jax.Array, activation: Activation) -> jax.Array:
    """Applies an activation function elementwise."""
    match activation:
        case "gelu":
            return gelu(x)
        case "gelu_tanh":
            return jax.nn.gelu(x, approximate=True)
        case "relu":
            return jax.nn.relu(x)
        case "silu":
            return jax.nn.silu(x)
        case "tanh":
            return jnp.tanh(x)


class FeedForward(nnx.Module):
    """Computes two dense layers, D -> F -> D, with an activation between them."""

    def __init__(self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.intermediate = linear(
            config.hidden_size, config.intermediate_size, config, compute, rngs
        )
        self.output = linear(config.intermediate_size, config.hidden_size, config, compute, rngs)
        self.activation: Activation = config.hidden_act

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Maps [B, L, D] to [B, L, D]."""
        return self.output(activate(self.intermediate(x_BLD), self.activation))


class PostNormBlock(nnx.Module):
    """Computes norm(x + sublayer(x)) for attention and for feed-forward: the layer of BERT."""

    def __init__(
        self,
        config: TransformerConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        attention: nnx.Module | None = None,
    ):
        """Initializes all parameters; `attention` None is `SelfAttention`."""
        self.attention: Any = (
            SelfAttention(config, compute, rngs) if attention is None else attention
        )
        self.attention_norm = layer_norm(config, compute)
        self.feed_forward = FeedForward(config, compute, rngs)
        self.feed_forward_norm = layer_norm(config, compute)
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self,
        x_BLD: jax.Array,
        mask: AttentionMask,
        dropout_seeds: jax.Array | None,
        *,
        return_attention_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Applies the layer.

        Args:
          dropout_seeds: uint32 [NUM_DROPOUT_SITES, 2], or None to apply no dropout.

        Returns:
          The output [B, L, D], and the attention weights, float32 [B, H, L, L], or None unless
          `return_attention_weights`.
        """
        attn_seed, residual_seed, ffn_seed = (
            (None,) * NUM_DROPOUT_SITES if dropout_seeds is None else dropout_seeds
        )
        attn_out, attention_weights = self.attention(
            x_BLD, mask, attn_seed, return_attention_weights=return_attention_weights
        )
        x_BLD = self.attention_norm.add(x_BLD, dropout(attn_out, self.dropout_rate, residual_seed))
        ffn_out = self.feed_forward(x_BLD)
        return self.feed_forward_norm.add(
            x_BLD, dropout(ffn_out, self.dropout_rate, ffn_seed)
        ), attention_weights


LayerResult = tuple[jax.Array, tuple[jax.Array | None, jax.Array | None]]

LayersOutput = tuple[jax.Array, list[jax.Array], list[jax.Array]]
"""The last output, the output of each layer or [], the attention weights of each layer or []."""


def apply_layers(
    blocks: Sequence[Any],
    compute: ComputeConfig,
    x_BLD: jax.Array,
    attention_inputs: Any,
    dropout_seeds: jax.Array | None,
    *,
    output_hidden_states: bool,
    output_attentions: bool,
) -> LayersOutput:
    """Runs the blocks one after another; with `"scanned"` they must be alike but for parameters.

    Args:
      blocks: the N layers, each a `PostNormBlock` or a class with the same interface.
      attention_inputs: the second argument of every block: an `AttentionMask` for `PostNormBlock`.
      dropout_seeds: uint32 [N, sites, 2], or None to apply no dropout.

    Returns:
      The last output [B, L, D]; the output of each layer if `output_hidden_states`, else []; the
      attention weights of each layer if `output_attentions`, else [].
    """

    run_block = block_runner(attention_inputs, output_hidden_states, output_attentions)
    seeds = [None] * len(blocks) if dropout_seeds is None else dropout_seeds
    if compute.layer_loop == "scanned":
        x_BLD, (states, weights) = _scan(run_block, blocks, compute, x_BLD, dropout_seeds)
        return x_BLD, unstack(states), unstack(weights)
    if compute.remat != "none":
        run_block = _rematerialized_block(run_block, compute)
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


def block_runner(
    attention_inputs: Any, output_hidden_states: bool, output_attentions: bool
) -> Callable[..., LayerResult]:
    """Returns a function that runs a block and returns (output, what the layer returns)."""

    def run_block(block: Any, x: jax.Array, layer_seeds: jax.Array | None) -> LayerResult:
        x, weights = block(
            x, attention_inputs, layer_seeds, return_attention_weights=output_attentions
        )
        return x, (x if output_hidden_states else None, weights)

    return run_block


def _scan(
    run_block: Callable[..., LayerResult],
    blocks: Sequence[Any],
    compute: ComputeConfig,
    x_BLD: jax.Array,
    dropout_seeds: jax.Array | None,
) -> tuple[jax.Array, Any]:
    params = [functional.split(block)[0] for block in blocks]
    _, merge = functional.split(blocks[0])

    def layer(x: jax.Array, inputs: tuple[Any, Any]) -> LayerResult:
        layer_params, layer_seeds = inputs
        return run_block(merge(layer_params), x, layer_seeds)

    # Parameters are stored one layer at a time for both loops, so that a path means the same in
    # checkpoints, tables and conversions. Stacking copies them once per step: less than 1 % of a
    # step at BERT's batch sizes.
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    # Inside a scan, CSE cannot undo rematerialization, so the barrier against it is left out.
    layer = rematerialized(layer, compute, prevent_cse=False)
    return jax.lax.scan(layer, x_BLD, (stacked, dropout_seeds))


def _rematerialized_block(
    run_block: Callable[..., LayerResult], compute: ComputeConfig
) -> Callable[..., LayerResult]:
    def run(block: Any, x: jax.Array, layer_seeds: Any) -> LayerResult:
        # `jax.checkpoint` needs the parameters as an argument, not inside a module.
        params, merge = functional.split(block)

        def layer(params: Any, x: jax.Array, layer_seeds: Any) -> LayerResult:
            return run_block(merge(params), x, layer_seeds)

        return rematerialized(layer, compute, prevent_cse=True)(params, x, layer_seeds)

    return run


def rematerialized(
    layer: Callable[..., Any], compute: ComputeConfig, *, prevent_cse: bool
) -> Callable[..., Any]:
    """Wraps a layer so that the backward pass recomputes what `compute.remat` does not save."""
    match compute.remat:
        case "none":
            return layer
        case "full":
            return jax.checkpoint(layer, prevent_cse=prevent_cse)
        case "save_dots":
            policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
            return jax.checkpoint(layer, prevent_cse=prevent_cse, policy=policy)


def unstack(stacked: jax.Array | None) -> list[jax.Array]:
    """Splits an array by its first axis; [] for None."""
    return [] if stacked is None else list(stacked)
