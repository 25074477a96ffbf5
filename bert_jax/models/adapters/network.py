"""Adds an adapter to a network: its parameters, where they are used, and how they are merged.

The parameters of an adapter are under "adapter/<path of the module that they adapt>/<name>", such
as "adapter/encoder/layers/0/attention/query/lora_a". All paths of the base stay as they are. After
the base is merged into a module, the adapted submodules are replaced by ones that use both, so no
model code knows about adapters.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.errors import ConfigError, did_you_mean
from bert_jax.functional import Network, Params
from bert_jax.models.adapters.config import Adapter, LoRA
from bert_jax.models.adapters.lora import (
    LoRABlock,
    LoRAEmbedding,
    LoRALinear,
    init_lora,
    lora_from_base,
    lora_shapes,
    merge_lora,
)
from bert_jax.models.layers.config import ComputeConfig, Scanned
from bert_jax.models.model import EncoderWithHeads
from bert_jax.params import paths
from bert_jax.params.paths import ADAPTER, LAYER_PREFIX

WORD_EMBEDDINGS = "encoder/embeddings/word_embeddings"


class AdaptedNetwork(Network[EncoderWithHeads]):
    """Holds a network with an adapter as three pure functions, like the network without it.

    The base is initialized from the same key to the same values as without the adapter.
    """

    def __init__(self, network: Network[EncoderWithHeads], method: Adapter, compute: ComputeConfig):
        """Finds the modules to adapt.

        Raises:
          ConfigError: the method does not fit the network.
        """
        self._network, self._method = network, method
        base = network.abstract()
        self._shapes = adapter_shapes(method, base)
        if isinstance(compute.layer_loop, Scanned):
            _check_equal_layers(self._shapes, group_by_module(base))

    def abstract(self) -> Params:
        """Returns the parameters of base and adapter as shapes and dtypes."""
        shapes = {
            f"{path}/{name}": jax.ShapeDtypeStruct(shape, jnp.float32)
            for path, leaves in self._shapes.items()
            for name, shape in leaves.items()
        }
        return {**self._network.abstract(), ADAPTER: paths.unflatten(shapes)}

    def init(self, key: jax.Array) -> Params:
        """Initializes base and adapter, float32."""
        adapter: dict[str, Any] = {}
        for path, leaves in self._shapes.items():
            # Derived from the path, so that one layer does not depend on which others are adapted.
            layer_key = jax.random.fold_in(key, zlib.crc32(path.encode()))
            for name, leaf in init_lora(leaves, layer_key).items():
                adapter[f"{path}/{name}"] = leaf
        params = {**self._network.init(key), ADAPTER: paths.unflatten(adapter)}
        return start_from_base(self._method, params)

    def merge(self, params: Params) -> EncoderWithHeads:  # type: ignore[override]
        """Returns the module with the parameters of base and adapter; see `Network.merge`."""
        base = {name: tree for name, tree in params.items() if name != ADAPTER}
        module = self._network.merge(base)
        install_adapter(module, self._method, params[ADAPTER])
        return module


def adapter_shapes(method: Adapter, base: Params) -> dict[str, dict[str, tuple[int, ...]]]:
    """Returns the shapes of an adapter's parameters by path of the adapted module and by name.

    Args:
      base: the parameters of the network, as arrays or shapes.

    Raises:
      ConfigError: a target matches no layer, or the rank is larger than a matrix.
    """
    modules = group_by_module(base)
    return {
        path: lora_shapes(method, path, modules[path])
        for path in select_layers(method.targets, modules)
    }


def select_layers(targets: tuple[str, ...], modules: Mapping[str, Any]) -> list[str]:
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
            known = sorted({_within_layer(path) for path in candidates})
            # The last name alone, such as "query", is a target, too.
            names = {name.rpartition("/")[2] for name in known} | set(known)
            raise ConfigError(
                f"train.tuning.method.targets contains {target!r}, which matches no layer of the "
                f"encoder; {did_you_mean(target, names)}expected the end of a path such as "
                f"{', '.join(known)}"
            )
        selected.update(found)
    return [path for path in candidates if path in selected]


def group_by_module(params: Params) -> dict[str, dict[str, Any]]:
    """Returns {path of a module: {name of a parameter of it: leaf}}."""
    modules: dict[str, dict[str, Any]] = {}
    for path, leaf in paths.flatten(params).items():
        module, _, name = path.rpartition("/")
        modules.setdefault(module, {})[name] = leaf
    return modules


def start_from_base(method: Adapter, params: Params) -> Params:
    """Returns parameters whose adapter starts from the values of the base, as DoRA's magnitude.

    Call it after the base is loaded.
    """
    del method
    base, adapter = group_by_module(params), group_by_module(params[ADAPTER])
    started = {
        f"{path}/{name}": leaf
        for path, leaves in adapter.items()
        for name, leaf in lora_from_base(leaves, base[path]).items()
    }
    return {**params, ADAPTER: paths.unflatten(started)}


def install_adapter(module: EncoderWithHeads, method: Adapter, adapter: Params) -> None:
    """Replaces the adapted submodules of a merged network, in place.

    A parameter of the adapter may have one more axis in front, which is that of the batch: then
    each row of a batch has an adapter of its own.
    """
    layers = group_by_module(adapter)
    for path, leaves in layers.items():
        base = submodule(module, path)
        is_dense = "lora_a" in leaves
        new = LoRALinear(base, leaves, method) if is_dense else LoRAEmbedding(base, leaves, method)
        replace_submodule(module, path, new)
    if method.dropout:
        blocks: dict[str, list[str]] = {}
        for path in layers:
            if match := LAYER_PREFIX.match(path):
                blocks.setdefault(match[0].rstrip("/"), []).append(path[match.end() :])
        for path, adapted in blocks.items():
            replace_submodule(module, path, LoRABlock(submodule(module, path), tuple(adapted)))


def merge_adapter(method: Adapter, params: Params) -> Params:
    """Returns parameters of the base alone that compute the same as base and adapter."""
    modules = group_by_module({name: tree for name, tree in params.items() if name != ADAPTER})
    for path, leaves in group_by_module(params[ADAPTER]).items():
        match method:
            case LoRA():
                modules[path] = merge_lora(method, leaves, modules[path])
    merged = {f"{path}/{name}": leaf for path, m in modules.items() for name, leaf in m.items()}
    return paths.unflatten(merged)


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


def _check_equal_layers(adapter: Mapping[str, Any], modules: Mapping[str, Any]) -> None:
    """Raises ConfigError unless all layers are adapted alike, which one loop over them needs."""
    adapted: dict[str, set[str]] = {}
    for path in modules:
        if match := LAYER_PREFIX.match(path):
            names = adapted.setdefault(match[0], set())
            if path in adapter:
                names.add(path[match.end() :])
    if len({frozenset(names) for names in adapted.values()}) > 1:
        raise ConfigError(
            "train.tuning.method.targets selects different layers of different depths, which "
            "objective.compute.layer_loop Scanned cannot run; expected targets without a number of "
            "a layer, or the layer loop Unrolled"
        )


def _within_layer(path: str) -> str:
    match = LAYER_PREFIX.match(path)
    return path[match.end() :] if match else path.removeprefix("encoder/")
