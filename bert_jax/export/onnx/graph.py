"""Builds an ONNX graph from operations and from the weights of a model by their paths."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

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
        suffix = content if array.size <= 4 else str(len(self._initializers))
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
