"""Finds and replaces the modules that an adapter changes; defines what each adapter implements."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.errors import ConfigError, did_you_mean
from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.matmul import dense
from bert_jax.params import paths
from bert_jax.params.functional import Params
from bert_jax.params.paths import LAYER_PREFIX

WORD_EMBEDDINGS = "encoder/embeddings/word_embeddings"

Leaves = Mapping[str, Any]
"""The parameters of one module by name, as arrays or as shapes."""
Modules = Mapping[str, Leaves]
"""The parameters of several modules by the path of the module."""
Shapes = dict[str, dict[str, tuple[int, ...]]]


def keep_modules(adapter: Modules, base: Modules) -> Modules:
    """Returns the parameters of an adapter as they are stored."""
    del base
    return adapter


def keep_adapter(method: Any, leaves: Leaves, base: Leaves) -> dict[str, Any]:
    """Returns the adapter as it is: it does not depend on the values of the base."""
    del method, base
    return dict(leaves)


class Implementation(NamedTuple):
    """Holds the functions that implement one kind of adapter.

    Their first argument is its config, except for `prepare`.

    Attributes:
      shapes: (method, modules of the base, config of the encoder) -> the shapes of the adapter's
        parameters, by path of the adapted module and by name. Raises ConfigError if sizes or
        targets do not fit the encoder.
      init: (method, shapes of one module by name, key) -> its initial parameters, float32.
      install: (method, merged network, parameters by module) -> None; replaces submodules in place.
        A parameter with one more axis in front has a value for each row of the batch. Raises
        ConfigError if the method is not implemented for this kind of encoder.
      merge: (method, path of a module, its adapter's parameters, the base's) -> parameters
        of a base that computes the same; None if there is no such base.
      from_base: (method, parameters of one module, the base's) -> parameters with what
        follows from the values of the base.
      prepare: (parameters by module, modules of the base) -> the parameters that `install` needs,
        if those that are trained compute them.
    """

    shapes: Callable[[Any, Modules, TransformerConfig], Shapes]
    init: Callable[[Any, Mapping[str, tuple[int, ...]], jax.Array], dict[str, jax.Array]]
    install: Callable[[Any, Any, Modules], None]
    merge: Callable[[Any, str, Leaves, Leaves], dict[str, Any]] | None = None
    from_base: Callable[[Any, Leaves, Leaves], dict[str, Any]] = keep_adapter
    prepare: Callable[[Modules, Modules], Modules] = keep_modules


def select_layers(targets: Sequence[str], modules: Modules) -> list[str]:
    """Returns the paths of the dense layers and embedding tables that the targets select.

    Raises:
      ConfigError: a target matches none; the message has the nearest one that does.
    """
    candidates = [
        path
        for path, leaves in modules.items()
        if path == WORD_EMBEDDINGS or (LAYER_PREFIX.match(path) and "kernel" in leaves)
    ]
    selected: set[str] = set()
    for target in targets:
        found = [path for path in candidates if paths.matches(f"encoder/**/{target}", path)]
        if not found:
            known = sorted({path_in_layer(path) for path in candidates})
            # The last name alone, such as "query", is a target, too.
            names = {name.rpartition("/")[2] for name in known} | set(known)
            raise ConfigError(
                f"train.tuning.method.targets contains {target!r}, which matches no layer of the "
                f"encoder; {did_you_mean(target, names)}expected the end of a path such as "
                f"{', '.join(known)}"
            )
        selected.update(found)
    return [path for path in candidates if path in selected]


def path_in_layer(path: str) -> str:
    """Returns the path of a module within its layer, or within the encoder outside of layers."""
    match = LAYER_PREFIX.match(path)
    return path[match.end() :] if match else path.removeprefix("encoder/")


def group_by_module(params: Params) -> dict[str, dict[str, Any]]:
    """Returns {path of a module: {name of a parameter of it: leaf}}."""
    modules: dict[str, dict[str, Any]] = {}
    for path, leaf in paths.flatten(params).items():
        module, _, name = path.rpartition("/")
        modules.setdefault(module, {})[name] = leaf
    return modules


_INNER_LAYERS = ("down", "up")


def group_adapter(adapter: Params) -> dict[str, dict[str, Any]]:
    """Returns {path of an adapted module: {name of a parameter, such as "down/kernel": leaf}}."""
    modules: dict[str, dict[str, Any]] = {}
    for path, leaf in paths.flatten(adapter).items():
        module, _, name = path.rpartition("/")
        owner, _, layer = module.rpartition("/")
        if layer in _INNER_LAYERS:
            module, name = owner, f"{layer}/{name}"
        modules.setdefault(module, {})[name] = leaf
    return modules


def submodule(module: Any, path: str) -> Any:
    """Returns the submodule at a parameter path such as "encoder/layers/0/attention"."""
    for name in path.split("/"):
        module = module[int(name)] if name.isdigit() else getattr(module, name)
    return module


def replace_submodule(module: Any, path: str, new: Any) -> None:
    """Puts a module in the place of the submodule at a parameter path."""
    parent, _, name = path.rpartition("/")
    owner = submodule(module, parent) if parent else module
    if name.isdigit():
        owner[int(name)] = new
    else:
        setattr(owner, name, new)


def rowwise_dense(x: jax.Array, kernel: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Computes x [B, ..., in] times a kernel [in, out], or [B, in, out] with one for each row of B.

    Returns:
      float32 [B, ..., out], from operands in `dtype`.

    Raises:
      ConfigError: there is a kernel for each row, but x has no axis of rows.
    """
    if kernel.ndim == 2:
        return dense(x, kernel, None, dtype)
    _check_has_rows(x)
    return jnp.einsum(
        "b...i,bio->b...o",
        x.astype(dtype),
        kernel.astype(dtype),
        preferred_element_type=jnp.float32,
    )


def rowwise_vector(vector: jax.Array, x: jax.Array) -> jax.Array:
    """Returns a vector [n], or [B, n] with one for each row of x [B, ..., n], to broadcast to x.

    Raises:
      ConfigError: there is a vector for each row, but x has no axis of rows.
    """
    if vector.ndim == 1:
        return vector
    _check_has_rows(x)
    return vector.reshape(vector.shape[0], *(1,) * (x.ndim - 2), vector.shape[-1])


def _check_has_rows(x: jax.Array) -> None:
    if x.ndim < 3:  # [R, in], not [B, L, in]
        raise ConfigError(
            "an adapter of a layer that also maps vectors which all examples share, as the query "
            "and key of DeBERTa map its relative positions, cannot be in a set of adapters; use "
            "bert-jax predict with this adapter alone, or train LoRA of other layers, such as "
            "attention/value"
        )
