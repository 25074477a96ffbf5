"""Where Flax NNX modules become plain functions of plain parameter dicts, and nowhere else.

Modules *describe* a network. Everything that runs (jit, grad, scan, checkpoint, sharding, saving)
sees a nested dict {"encoder": {"layers": {"0": {...}}}} of arrays, so no NNX transform, reference
or variable state leaks out of this file.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import jax
from flax import nnx

from bert_jax.params import paths

Params = dict[str, Any]
M = TypeVar("M", bound=nnx.Module)


def split_module(module: M) -> tuple[Params, Callable[[Params], M]]:
    """Splits a module into its parameters and the function that puts parameters back in."""
    graph, state = nnx.split(module)
    flat = nnx.to_flat_state(state)
    params = paths.unflatten({"/".join(map(str, path)): leaf[...] for path, leaf in flat})

    def merge(new_params: Params) -> M:
        values = paths.flatten(new_params)
        leaves = {path: leaf.replace(values["/".join(map(str, path))]) for path, leaf in flat}
        return nnx.merge(graph, nnx.from_flat_state(leaves))

    return params, merge


class _ShapeOnlyRngs:
    """Stands in for `nnx.Rngs` where shapes alone matter: that one costs a second for BERT-base."""

    def params(self) -> jax.Array:
        return jax.random.key(0)


class Network(Generic[M]):
    """A network as three pure functions over its parameters: `abstract`, `init`, `bind`."""

    def __init__(self, build: Callable[[nnx.Rngs], M]):
        """`build` constructs the module; it is only ever traced here, never run."""
        self._build = build
        template = nnx.eval_shape(lambda: build(cast(nnx.Rngs, _ShapeOnlyRngs())))
        graph, state = nnx.split(template)
        self._graph = graph
        self._flat = [
            ("/".join(map(str, path)), path, leaf) for path, leaf in nnx.to_flat_state(state)
        ]

    def abstract(self) -> Params:
        """The parameters as `jax.ShapeDtypeStruct`s: nothing is allocated."""
        return paths.unflatten({name: leaf.get_value() for name, _, leaf in self._flat})

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters. Pure: jit it with `out_shardings` to build them where they belong."""
        params, _ = split_module(self._build(nnx.Rngs(key)))
        return params

    def merge(self, params: Params) -> M:
        """The module holding `params`, to be called inside a pure function."""
        values = paths.flatten(params)
        leaves = {path: leaf.replace(values[name]) for name, path, leaf in self._flat}
        return nnx.merge(self._graph, nnx.from_flat_state(leaves))
