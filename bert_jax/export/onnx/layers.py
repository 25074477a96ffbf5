"""Writes the layers that encoders and heads share as ONNX operations.

The order of the operations of attention and of its mask is that of PyTorch's exporter, which
onnxruntime recognizes and replaces by one fused operation.
"""

from typing import NamedTuple

import numpy as np

from bert_jax.export.onnx.graph import GraphBuilder
from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.config import Activation, Gelu, GeluTanh, Relu, Silu, Tanh

MASKED_SCORE = -10_000.0
"""Added to the scores of padding. Finite, because softmax of a row of padding must not be NaN."""


class Rotation(NamedTuple):
    """Holds the cosines and sines that rotate queries and keys, values [1, L, 1, K / 2]."""

    cos: str
    sin: str


def dense(graph: GraphBuilder, x: str, path: str) -> str:
    """Writes a dense layer with the kernel at `path`, and with the bias if there is one."""
    product = graph.add("MatMul", x, graph.weight(f"{path}/kernel"))
    if not graph.has_weight(f"{path}/bias"):
        return product
    return graph.add("Add", product, graph.weight(f"{path}/bias"))


def layer_norm(graph: GraphBuilder, x: str, path: str, epsilon: float) -> str:
    """Writes a LayerNorm over the last axis, with or without a bias."""
    parameters = [graph.weight(f"{path}/scale")]
    if graph.has_weight(f"{path}/bias"):
        parameters.append(graph.weight(f"{path}/bias"))
    return graph.add("LayerNormalization", x, *parameters, axis=-1, epsilon=epsilon)


def activate(graph: GraphBuilder, x: str, activation: Activation) -> str:
    """Writes an activation function."""
    match activation:
        case Gelu():
            return graph.add("Gelu", x)
        case GeluTanh():
            return graph.add("Gelu", x, approximate="tanh")
        case Relu():
            return graph.add("Relu", x)
        case Silu():
            return graph.add("Mul", x, graph.add("Sigmoid", x))
        case Tanh():
            return graph.add("Tanh", x)


def length_of(graph: GraphBuilder, ids: str) -> str:
    """Returns the length of sequences of ids [B, L] as an int64 list of one number."""
    return graph.add("Shape", ids, start=1, end=2)


def mask_bias(graph: GraphBuilder, attention_mask: str) -> str:
    """Returns what is added to scores because of padding, float32 [B, 1, 1, L]."""
    mask = graph.add("Unsqueeze", attention_mask, graph.integers(1))
    mask = graph.add("Unsqueeze", mask, graph.integers(2))
    padding = graph.add("Sub", graph.scalar(1.0), graph.add("Cast", mask, to=1))
    return graph.add("Mul", padding, graph.scalar(MASKED_SCORE))


def positions(graph: GraphBuilder, length: str) -> str:
    """Returns the positions 0 to L - 1, int64 [L]."""
    scalar_length = graph.add("Squeeze", length)
    zero, one = (graph.constant(number, np.int64) for number in (0, 1))
    return graph.add("Range", zero, scalar_length, one)


def distances(graph: GraphBuilder, length: str) -> str:
    """Returns key position - query position for all queries and keys, int64 [L, L]."""
    position = positions(graph, length)
    keys, queries = (graph.add("Unsqueeze", position, graph.integers(axis)) for axis in (0, 1))
    return graph.add("Sub", keys, queries)


def self_attention(
    graph: GraphBuilder,
    x: str,
    path: str,
    config: TransformerConfig,
    bias: str,
    rotation: Rotation | None = None,
) -> str:
    """Writes multi-head attention, [B, L, D] -> [B, L, D].

    Args:
      bias: added to the scores, broadcastable to [B, H, L, L].
      rotation: rotates queries and keys; None for families with position embeddings.
    """
    heads, width = config.num_attention_heads, config.hidden_size
    shape = graph.integers(0, 0, heads, width // heads)
    query, key, value = (
        graph.add("Reshape", dense(graph, x, f"{path}/{name}"), shape)
        for name in ("query", "key", "value")
    )
    if rotation is not None:
        query, key = (_rotate(graph, each, rotation) for each in (query, key))
    query, value = (graph.add("Transpose", each, perm=(0, 2, 1, 3)) for each in (query, value))
    key = graph.add("Transpose", key, perm=(0, 2, 3, 1))
    scores = graph.add("MatMul", query, key)
    scores = graph.add("Div", scores, graph.scalar((width // heads) ** 0.5))
    weights = graph.add("Softmax", graph.add("Add", scores, bias), axis=-1)
    context = graph.add("Transpose", graph.add("MatMul", weights, value), perm=(0, 2, 1, 3))
    context = graph.add("Reshape", context, graph.integers(0, 0, width))
    return dense(graph, context, f"{path}/output")


def _rotate(graph: GraphBuilder, x: str, rotation: Rotation) -> str:
    """Rotates [B, L, H, K]: pair i is element i and element i + K / 2 of a head."""
    last = graph.integers(-1)
    half = graph.add("Div", graph.add("Shape", x, start=3, end=4), graph.integers(2))
    first = graph.add("Slice", x, graph.integers(0), half, last)
    second = graph.add("Slice", x, half, graph.integers(2**31), last)

    def product(left: str, right: str) -> str:
        return graph.add("Mul", left, right)

    return graph.add(
        "Concat",
        graph.add("Sub", product(first, rotation.cos), product(second, rotation.sin)),
        graph.add("Add", product(second, rotation.cos), product(first, rotation.sin)),
        axis=-1,
    )
