"""Traces the gradient of a loss on abstract arrays, and finds the peak of the memory it needs.

Nothing is allocated or compiled, and no family or objective has a formula of its own. XLA is
modeled like this: it writes the results of matrix products, lookups, kernels and loops to memory,
and recomputes everything else in the fusions that read it, in the backward pass too if needed
(softmax, dropout masks, norms, the non-linearity). So

- a product stores its result, in the dtype to which its readers round it;
- a value rounded to fewer bytes than it is computed from is stored, too, unless layers are
  recomputed: attention weights in bfloat16, which follow from scores in float32;
- reductions over an axis (of norms, for example) are stored, and gradients summed from
  several places;
- the inputs of recomputed layers (remat) and what loops and kernels read in the backward pass are
  stored;
- a stored value is live until the last product that reads it or something computed from it.

A scan over layers stores every residual that JAX saves, because XLA cannot recompute a value across
the boundary of a loop.

Traced shapes are global. Each dimension has the mesh axis that splits it, which is carried from the
batch and the logical axes of the parameters to whatever is computed from them. TPU generations
differ in what they store of the same value (`Generation.saved_*` in `tpu_slices.json`).
`tests/apps/plan/memory_test.py` compares the peaks with libtpu 0.0.42: BERT on all generations is
within 3 %, remat, scanned layers and other families mostly within 5 %, all within 10 %.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr

from bert_jax.batch import batch_spec
from bert_jax.config.objectives import ObjectiveConfig
from bert_jax.config.tuning import TuningConfig
from bert_jax.models.sharding import LOGICAL_TO_MESH, parameter_axes
from bert_jax.objectives.base import BatchSizes
from bert_jax.objectives.make import make_objective
from bert_jax.parallel.tpu_slices import Generation
from bert_jax.train.tuning.freezing import mask_frozen, unmask_frozen

BATCH, TENSOR = "batch", "tensor"
Axes = tuple[str | None, ...]
"""What splits each dimension of an array: `BATCH` (the mesh axes data and fsdp) or `TENSOR`."""

_CALLS = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"}
_REMAT = {"checkpoint", "remat", "remat2"}
_LOOPS_AND_KERNELS = {"scan", "cond", "while", "pallas_call"}
_STORED = {"dot_general", "conv_general_dilated", "gather", "scatter-add", "sort"}
_NONLINEAR = {"erf", "tanh", "logistic"}
_KEEP_VALUES = {"add", "mul", "transpose", "reshape", "broadcast_in_dim"}


def trace_gradient(
    config: ObjectiveConfig, tuning: TuningConfig, fields: tuple[str, ...], sizes: dict[str, int]
) -> "Trace":
    """Traces the gradients of the trained parameters for a batch of global `sizes`."""
    cached_features = tuning.features == "cached"
    objective = make_objective(config, adapter=tuning.adapter, cached_features=cached_features)
    params = objective.abstract()
    trained = mask_frozen(tuning, params)
    batch = {
        name: jax.ShapeDtypeStruct(shape, dtype)
        for name, (shape, dtype) in batch_spec(fields, sizes).items()
    }

    def gradients(loss_gradient: Any, trained: Any, params: Any, batch: Any) -> Any:
        def loss(trained: Any) -> jax.Array:
            denominators, key = objective.loss_denominators(batch), jax.random.key(0)
            all_params = unmask_frozen(trained, params)
            return objective.compute_loss(all_params, batch, denominators, key).loss

        return jax.vjp(loss, trained)[1](loss_gradient)

    arguments = (jax.ShapeDtypeStruct((), np.float32), trained, params, batch)
    jaxpr = jax.make_jaxpr(gradients)(*arguments).jaxpr
    # The backward pass of `dense` has the gradients of frozen kernels, too; XLA removes them.
    used, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    axes: list[Axes] = [()]
    for keys, _ in jax.tree_util.tree_leaves_with_path((trained, params)):
        axes.append(_parameter_axes("/".join(str(key.key) for key in keys[1:])))
    axes += [(BATCH, *(None,) * (len(leaf.shape) - 1)) for leaf in jax.tree.leaves(batch)]
    # What depends on the gradient of the loss is the backward pass.
    num_sequences = BatchSizes.from_dims(sizes).sequences
    return Trace(used, axes, [True] + [False] * (len(axes) - 1), num_sequences)


def _parameter_axes(path: str) -> Axes:
    axes = parameter_axes()[path]
    return tuple(TENSOR if name and LOGICAL_TO_MESH[name] == TENSOR else None for name in axes)


@dataclass(frozen=True)
class _Op:
    """Holds an equation; variables are numbers, and literals are left out."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    equation: Any
    recomputed: bool


@dataclass
class _StoredValue:
    """Holds a value in memory, from its `first` operation to its `last`."""

    size: int
    itemsize: int
    axes: Axes
    first: int
    last: int
    is_residual: bool  # of an unrolled layer: a result of the forward pass
    feeds_nonlinearity: bool
    is_gradient: bool = False

    def bytes_on(self, generation: Generation, tensor_parallel_size: int) -> float:
        """Returns the bytes with the whole batch on one device."""
        fixed, copies = 0.0, 1.0
        if self.is_residual and self.feeds_nonlinearity:
            fixed, copies = generation.saved_ffn
        elif self.is_residual and TENSOR in self.axes:  # of queries, keys, values and context
            fixed, copies = (number / 4 for number in generation.saved_sharded)
        elif self.is_residual:  # of the inputs of two norms
            fixed, copies = (number / 2 for number in generation.saved_replicated)
        size = self.size * (fixed + copies * self.itemsize)
        return size / tensor_parallel_size if TENSOR in self.axes else size


class Trace:
    """Holds the values that a program stores, and when; `Trace.peak` sums them for a mesh.

    The operations of all called functions are numbered in the order of the program.
    """

    def __init__(
        self, jaxpr: Any, axes: Sequence[Axes], is_backward: Sequence[bool], num_sequences: int
    ):
        """Finds the stored values.

        Args:
          jaxpr: the program.
          axes: the axes of each input.
          is_backward: whether each input depends on the gradient of the loss.
          num_sequences: the sequences of the batch.
        """
        self._num_sequences = num_sequences
        self._ops: list[_Op] = []
        self._avals: list[Any] = []
        names: dict[Any, int] = {}
        inputs = [self._new(names, var) for var in jaxpr.invars]
        for var in jaxpr.constvars:
            self._new(names, var)
        remat_inputs = self._flatten(jaxpr, names, recomputed=False) - set(inputs)
        self._outputs = [
            self._new(names, var) if isinstance(var, core.Literal) else names[var]
            for var in jaxpr.outvars
        ]
        self._readers: dict[int, list[_Op]] = {}
        for op in self._ops:
            for var in op.inputs:
                self._readers.setdefault(var, []).append(op)
        count = len(self._avals)
        self._axes: list[Axes] = [(None,) * len(_shape(aval)) for aval in self._avals]
        self._backward, self._sources = [False] * count, [frozenset[int]()] * count
        self._produced = [0] * count
        self._stored: list[_StoredValue] = []
        self._stored_vars: set[int] = set()
        self._inner: list[tuple[int, Trace]] = []
        for var, var_axes, backward in zip(inputs, axes, is_backward, strict=True):
            self._axes[var], self._backward[var] = var_axes, backward
        for time, op in enumerate(self._ops):
            self._run(time, op, remat_inputs)
        for var in self._outputs:
            for number in self._sources[var] if self._backward[var] else ():
                value = self._stored[number]
                value.last = len(self._ops)
                value.is_gradient = value.size == self._avals[var].size

    def peak(
        self,
        generation: Generation,
        *,
        batch_fraction: float,
        tensor_parallel_size: int,
        gradient_shards: int,
    ) -> int:
        """Returns the bytes of one device's stored values when they are most.

        Args:
          generation: the generation of the TPU.
          batch_fraction: the device's part of the traced batch.
          tensor_parallel_size: the devices that share a layer.
          gradient_shards: the devices that share the gradients of parameters (FSDP).
        """
        change = np.zeros(len(self._ops) + 2)
        for value in self._stored:
            size = value.bytes_on(generation, tensor_parallel_size)
            size *= batch_fraction if BATCH in value.axes else 1
            size /= gradient_shards if value.is_gradient else 1
            change[value.first] += size
            change[value.last] -= size  # its last reader may overwrite it
        live = np.cumsum(change)
        for time, body in self._inner:
            live[time] += body.peak(
                generation,
                batch_fraction=batch_fraction,
                tensor_parallel_size=tensor_parallel_size,
                gradient_shards=1,
            )
        return int(live.max())

    def _new(self, names: dict[Any, int], var: Any) -> int:
        names[var] = len(self._avals)
        self._avals.append(var.aval)
        return names[var]

    def _flatten(self, jaxpr: Any, names: dict[Any, int], *, recomputed: bool) -> set[int]:
        """Adds a jaxpr's operations, with bodies in place of calls; returns the inputs of remat."""
        remat_inputs: set[int] = set()
        for equation in jaxpr.eqns:
            name = equation.primitive.name
            inputs = tuple(names[v] for v in equation.invars if not isinstance(v, core.Literal))
            if name not in _CALLS | _REMAT:
                outputs = tuple(self._new(names, var) for var in equation.outvars)
                self._ops.append(_Op(name, inputs, outputs, equation, recomputed))
                continue
            params = equation.params
            body = params["call_jaxpr"] if "call_jaxpr" in params else params["jaxpr"]
            body, inner = getattr(body, "jaxpr", body), dict[Any, int]()
            for var in body.constvars:
                self._new(inner, var)
            for var, argument in zip(body.invars, equation.invars, strict=True):
                if isinstance(argument, core.Literal):
                    self._new(inner, var)
                else:
                    inner[var] = names[argument]
            remat_inputs |= set(inputs) if name in _REMAT else set()
            remat_inputs |= self._flatten(body, inner, recomputed=recomputed or name in _REMAT)
            for var, result in zip(equation.outvars, body.outvars, strict=True):
                if isinstance(result, core.Literal):
                    self._new(names, var)
                else:
                    names[var] = inner[result]
        return remat_inputs

    def _run(self, time: int, op: _Op, remat_inputs: set[int]) -> None:
        """Adds what an operation stores, and extends the lives of what it reads."""
        backward = any(self._backward[var] for var in op.inputs)
        is_loop = op.name in _LOOPS_AND_KERNELS
        stores = is_loop or op.name in _STORED or self._is_stored_sum(op)
        for var in op.inputs if stores else ():
            in_backward, sources = self._backward[var], self._sources[var]
            is_operand_of_loop = is_loop and bool(in_backward and sources)
            is_stacked = op.name == "scan" and not sources and self._produced[var] > 0
            is_rounded = not (in_backward or op.recomputed) and self._is_rounded(var)
            if is_operand_of_loop or is_stacked or is_rounded:
                written = time if in_backward else self._produced[var]
                self._read(var, written)
                self._store(var, written)
            self._read(var, time)
        for var in op.outputs:
            self._backward[var], self._produced[var] = backward, time
            self._sources[var] = frozenset[int]().union(*(self._sources[i] for i in op.inputs))
            self._axes[var] = self._output_axes(op, var)
        if op.name == "scan":
            self._run_body(time, op)
        for var in op.outputs:
            if stores or (var in remat_inputs and self._sources[var]):
                self._store(var, time, self._rounded_itemsize(var) if stores else None, op.name)

    def _is_stored_sum(self, op: _Op) -> bool:
        if op.name == "add_any" and len(op.inputs) == 2:  # from places that share no products
            left, right = (self._sources[var] for var in op.inputs)
            return not (left <= right or right <= left)
        return op.name.startswith("reduce") and any(
            self._avals[var].size > self._avals[op.outputs[0]].size for var in op.inputs
        )

    def _is_rounded(self, var: int) -> bool:
        aval = self._avals[var]
        return any(
            source.size == aval.size and source.itemsize > aval.dtype.itemsize
            for source in (self._stored[number] for number in self._sources[var])
        )

    def _read(self, var: int, time: int) -> None:
        for number in self._sources[var]:
            self._stored[number].last = max(time, self._stored[number].last)

    def _store(self, var: int, time: int, itemsize: int | None = None, op_name: str = "") -> None:
        aval = self._avals[var]
        if var in self._stored_vars:
            return
        self._stored_vars.add(var)
        forward = not self._backward[var]
        value = _StoredValue(
            size=aval.size,
            itemsize=itemsize or getattr(aval.dtype, "itemsize", 4),
            axes=self._axes[var],
            first=time,
            last=time,
            is_residual=forward and op_name != "scan",
            feeds_nonlinearity=forward and self._feeds_nonlinearity(var),
        )
        self._sources[var] = frozenset({len(self._stored)})
        self._stored.append(value)

    def _run_body(self, time: int, op: _Op) -> None:
        """Traces the body of a scan: for the axes of its results, and for its peak memory."""
        jaxpr, operands = op.equation.params["jaxpr"].jaxpr, iter(op.inputs)
        axes, backward = list[Axes](), list[bool]()
        for var, inner in zip(op.equation.invars, jaxpr.invars, strict=True):
            # Each iteration reads a slice of it. jax 0.12 has no `num_consts` and `num_carry`.
            is_stacked = len(var.aval.shape) > len(inner.aval.shape)
            operand = None if isinstance(var, core.Literal) else next(operands)
            operand_axes = () if operand is None else self._axes[operand]
            axes.append(operand_axes[1:] if is_stacked else operand_axes)
            backward.append(operand is not None and self._backward[operand])
        body = Trace(jaxpr, axes, backward, self._num_sequences)
        for index, (var, result) in enumerate(zip(op.outputs, body._outputs, strict=True)):
            is_stacked = len(self._avals[var].shape) > len(jaxpr.outvars[index].aval.shape)
            self._axes[var] = (None,) * is_stacked + body._axes[result]
        self._inner.append((time, body))

    def _rounded_itemsize(self, var: int, depth: int = 6) -> int:
        """Returns the bytes per element in the dtype to which all readers round a value."""
        aval, readers = self._avals[var], self._readers.get(var, [])
        own = getattr(aval.dtype, "itemsize", 4)
        if not readers or not depth or var in self._outputs:
            return own
        itemsizes: list[int] = []
        for op in readers:
            result = self._avals[op.outputs[0]]
            if op.name == "convert_element_type":
                itemsizes.append(result.dtype.itemsize)
            elif op.name in _KEEP_VALUES and result.size == aval.size:
                itemsizes.append(self._rounded_itemsize(op.outputs[0], depth - 1))
            else:
                return own
        return min(own, max(itemsizes))

    def _feeds_nonlinearity(self, var: int, depth: int = 8) -> bool:
        """Returns whether a non-linearity is computed from a value element by element."""
        size = self._avals[var].size
        for op in self._readers.get(var, []):
            is_relu = op.name == "max" and len(op.inputs) == 1
            if op.name in _NONLINEAR or is_relu:
                return True
            if op.name in _STORED | _LOOPS_AND_KERNELS or op.name.startswith("reduce") or not depth:
                continue
            if any(
                self._avals[result].size == size and self._feeds_nonlinearity(result, depth - 1)
                for result in op.outputs
            ):
                return True
        return False

    def _output_axes(self, op: _Op, var: int) -> Axes:
        """Returns the axes of a result, from the axes of the operands."""
        shape, params = _shape(self._avals[var]), op.equation.params
        axes = [self._axes[i] for i in op.inputs]
        shapes = [_shape(self._avals[i]) for i in op.inputs]
        if op.name == "dot_general" and len(axes) == 2:
            contracted, batch = params["dimension_numbers"]
            shared = [axes[0][i] or axes[1][j] for i, j in zip(*batch, strict=True)]
            for side in (0, 1):
                used = (*contracted[side], *batch[side])
                shared += [axis for i, axis in enumerate(axes[side]) if i not in used]
            return tuple(shared)
        if op.name == "transpose":
            return tuple(axes[0][i] for i in params["permutation"])
        if op.name.startswith(("reduce", "arg")) and "axes" in params:
            return tuple(axis for i, axis in enumerate(axes[0]) if i not in params["axes"])
        found: list[str | None] = [None] * len(shape)
        if op.name == "broadcast_in_dim" and axes:
            for i, position in enumerate(params["broadcast_dimensions"]):
                found[position] = axes[0][i] if shapes[0][i] == shape[position] else None
        elif op.name in ("reshape", "squeeze", "expand_dims"):
            # A split dimension stays the one with as many elements in the dimensions before it.
            starts = {math.prod(shape[:i]): i for i, n in reversed(list(enumerate(shape))) if n > 1}
            for i, axis in enumerate(axes[0]):
                if axis and math.prod(shapes[0][:i]) in starts:
                    found[starts[math.prod(shapes[0][:i])]] = axis
        else:
            if op.name == "gather" and len(axes) == 2:
                found = [*axes[1][:-1], *found][: len(shape)]
            if not axes and len(shape) > 1 and shape[0] % self._num_sequences == 0:
                found[0] = BATCH  # the indices of a dropout mask
            for operand_axes, operand_shape in zip(axes, shapes, strict=True):
                for i, axis in enumerate(operand_axes[: len(shape)]):
                    if axis and operand_shape[i] == shape[i]:
                        found[i] = axis
        return tuple(found)


def _shape(aval: Any) -> tuple[int, ...]:
    return getattr(aval, "shape", ())
