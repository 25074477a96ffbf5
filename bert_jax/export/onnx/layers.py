"""Builds an ONNX graph: weights by their paths, and the layers of encoders as operations.

The order of the operations of attention and of its mask is as in PyTorch's exporter, which
onnxruntime recognizes and replaces by one fused operation.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.config import Activation

OPSET = 20
"""The version of ONNX's operators: the first one with Gelu."""
_IR_VERSION = 9  # the file format that belongs to opset 20; onnxruntime 1.17 and later read it

Dims = tuple[str | int, ...]


class GraphBuilder:
    """Collects the operations of a graph; a value of the graph is the string that names it.

    Weights keep the paths that they have here, so a weight that several layers use is stored once.
    """

    def __init__(self, weights: Mapping[str, np.ndarray]):
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}

    def has_weight(self, path: str) -> bool:
        """Returns whether the model has a weight."""
        return path in self._weights

    def weight(self, path: str) -> str:
        """Returns a weight as a value of the graph; KeyError if the model does not have it."""
        return self._initializer(path, self._weights[path])

    def constant(self, values: Any, dtype: type[Any]) -> str:
        """Returns an array of numbers as a value of the graph."""
        array = np.asarray(values, dtype)
        content = "_".join(map(str, array.flatten().tolist()))
        # Small constants are named by their content, so that equal ones are shared.
        suffix = content if array.size <= 4 else str(len(self._initializers))
        # Dtype and shape are part of the name, so that a scalar 0, a list [0] and a float 0 stay
        # different values.
        return self._initializer(f"{array.dtype}{list(array.shape)}_{suffix}", array)

    def integers(self, *values: int) -> str:
        """Returns a list of int64, as in the shape of a Reshape."""
        return self.constant(values, np.int64)

    def scalar(self, value: float) -> str:
        """Returns a float32 number."""
        return self.constant(value, np.float32)

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Adds an operation with one output, and returns that output."""
        name = f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def rename(self, value: str, name: str) -> None:
        """Gives a value the name of an output of the graph."""
        # An Identity instead of a new name, because the value may be an input of other
        # operations.
        self._nodes.append(helper.make_node("Identity", [value], [name], name=f"output_{name}"))

    def model(self, inputs: Mapping[str, Dims], outputs: Mapping[str, Dims]) -> onnx.ModelProto:
        """Returns the model: int64 inputs and float32 outputs, by name with their dims.

        A dim that is a string may have any size, the same for all inputs and outputs.
        """
        graph = helper.make_graph(
            self._nodes,
            "bert_jax",
            [_value_info(name, TensorProto.INT64, dims) for name, dims in inputs.items()],
            [_value_info(name, TensorProto.FLOAT, dims) for name, dims in outputs.items()],
            list(self._initializers.values()),
        )
        return helper.make_model(
            graph,
            producer_name="bert_jax",
            ir_version=_IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET)],
        )

    def _initializer(self, name: str, array: np.ndarray) -> str:
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(np.asarray(array, order="C"), name)
        return name


def _value_info(name: str, dtype: int, dims: Dims) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, dims)


# Not minus infinity: a row of padding would have NaN.
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
        case "gelu":
            return graph.add("Gelu", x)
        case "gelu_tanh":
            return graph.add("Gelu", x, approximate="tanh")
        case "relu":
            return graph.add("Relu", x)
        case "silu":
            return graph.add("Mul", x, graph.add("Sigmoid", x))
        case "tanh":
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
    # 0 copies a dim of the input in ONNX's Reshape, so batch and length stay dynamic.
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
    # A slice that ends after the last element is cut to the size, as in NumPy.
    second = graph.add("Slice", x, half, graph.integers(2**31), last)

    def product(left: str, right: str) -> str:
        return graph.add("Mul", left, right)

    return graph.add(
        "Concat",
        graph.add("Sub", product(first, rotation.cos), product(second, rotation.sin)),
        graph.add("Add", product(second, rotation.cos), product(first, rotation.sin)),
        axis=-1,
    )
