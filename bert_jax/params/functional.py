"""Splits Flax NNX modules into plain parameter dicts and pure functions, and merges them again.

A network is written as an NNX module. Training, saving and sharding use its parameters as a nested
dict of arrays, such as {"encoder": {"layers": {"0": {...}}}}, with plain `jax.jit` and `jax.grad`.
All conversion between the two is in this module.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import jax
from flax import nnx

from bert_jax.params import paths

Params = dict[str, Any]
M = TypeVar("M", bound=nnx.Module)


def split(module: M) -> tuple[Params, Callable[[Params], M]]:
    """Splits a module into its parameters and a function that merges parameters into a module.

    The merge function is pure and costs some Python time, so call it once for each trace.
    """
    graph, state = nnx.split(module)
    leaves = [("/".join(map(str, path)), path, leaf) for path, leaf in nnx.to_flat_state(state)]

    def merge(params: Params) -> M:
        values = paths.flatten(params)
        merged = {path: leaf.replace(values[name]) for name, path, leaf in leaves}
        return nnx.merge(graph, nnx.from_flat_state(merged))

    return paths.unflatten({name: leaf.get_value() for name, _, leaf in leaves}), merge


class _ParamRngs:
    """Returns the keys of `nnx.Rngs(key).params()`, one for each call.

    It replaces that class because tracing its counter takes as long as tracing a train step.
    """

    def __init__(self, key: jax.Array):
        self._key, self._count = key, 0

    def params(self) -> jax.Array:
        key = jax.random.fold_in(self._key, self._count)
        self._count += 1
        return key


class _ShapeOnlyRngs:
    """Replaces `nnx.Rngs` when only shapes matter."""

    def params(self) -> jax.Array:
        # One key for all parameters is enough, because no number is drawn.
        return jax.random.key(0)


class Network(Generic[M]):
    """Holds a module as three pure functions over its parameters: `abstract`, `init`, `merge`.

    Attributes:
      merge: returns the module with the given parameters; call it inside a pure function.
    """

    def __init__(self, build: Callable[[nnx.Rngs], M]):
        """Traces `build`, which constructs the module; only shapes and dtypes are computed."""
        self._build = build
        template = nnx.eval_shape(lambda: build(cast(nnx.Rngs, _ShapeOnlyRngs())))
        self._abstract, self.merge = split(template)

    def abstract(self) -> Params:
        """Returns the parameters as `jax.ShapeDtypeStruct`s: nothing is allocated."""
        # A copy of the nested dicts, so that a caller who changes them does not change the network.
        return jax.tree.map(lambda leaf: leaf, self._abstract)

    def init(self, key: jax.Array) -> Params:
        """Returns newly initialized parameters, float32; jit it with `out_shardings` to shard."""
        params, _ = split(self._build(cast(nnx.Rngs, _ParamRngs(key))))
        return params
