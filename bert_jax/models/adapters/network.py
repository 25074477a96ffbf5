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

from bert_jax.errors import ConfigError
from bert_jax.models.adapters import bottleneck, ia3, lora, prefix, prompt
from bert_jax.models.adapters.config import (
    IA3,
    Adapter,
    HoulsbyAdapter,
    LoRA,
    PfeifferAdapter,
    PrefixTuning,
    PromptTuning,
)
from bert_jax.models.adapters.modules import Implementation, group_adapter, group_by_module
from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.model import EncoderWithHeads
from bert_jax.params import paths
from bert_jax.params.functional import Network, Params
from bert_jax.params.paths import ADAPTER, LAYER_PREFIX


# Modules are replaced after the base is merged, so that no model code knows adapters, and the scan
# over layers finds their parameters in the layers. `adapter/<path>` leaves the paths of the base as
# they are, so that base checkpoints, tables and exports do not change. In `models/`, because
# loading and interoperability are below `train/tuning/`.
class AdaptedNetwork(Network[EncoderWithHeads]):
    """Holds a network with an adapter as three pure functions, like the network without it.

    The base is initialized from the same key to the same values as without the adapter.
    """

    def __init__(
        self,
        network: Network[EncoderWithHeads],
        method: Adapter,
        config: TransformerConfig,
        compute: ComputeConfig,
    ):
        """Finds the modules to adapt.

        Raises:
          ConfigError: sizes or targets of the method do not fit the network.
        """
        self._network, self._method = network, method
        self._implementation = implementation(method)
        modules = group_by_module(network.abstract())
        self._shapes = self._implementation.shapes(method, modules, config)
        if compute.layer_loop == "scanned":
            _check_equal_layers(self._shapes, modules)

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
            for name, leaf in self._implementation.init(self._method, leaves, layer_key).items():
                adapter[f"{path}/{name}"] = leaf
        params = {**self._network.init(key), ADAPTER: paths.unflatten(adapter)}
        return start_from_base(self._method, params)

    def merge(self, params: Params) -> EncoderWithHeads:  # type: ignore[override]
        """Returns the module with the parameters of base and adapter; see `Network.merge`.

        Raises:
          ConfigError: the method is not implemented for this kind of encoder.
        """
        base = {name: tree for name, tree in params.items() if name != ADAPTER}
        module = self._network.merge(base)
        adapter = group_adapter(params[ADAPTER])
        prepared = self._implementation.prepare(adapter, group_by_module(base))
        self._implementation.install(self._method, module, prepared)
        return module


def implementation(method: Adapter) -> Implementation:
    """Returns the functions that implement a method."""
    match method:
        case LoRA():
            return lora.IMPLEMENTATION
        case IA3():
            return ia3.IMPLEMENTATION
        case HoulsbyAdapter() | PfeifferAdapter():
            return bottleneck.IMPLEMENTATION
        case PromptTuning():
            return prompt.IMPLEMENTATION
        case PrefixTuning():
            return prefix.IMPLEMENTATION


def start_from_base(method: Adapter, params: Params) -> Params:
    """Returns parameters whose adapter starts from the base, as DoRA's magnitude and prompts do.

    Call it after the base is loaded.
    """
    base, from_base = group_by_module(params), implementation(method).from_base
    started = {
        f"{path}/{name}": leaf
        for path, leaves in group_adapter(params[ADAPTER]).items()
        for name, leaf in from_base(method, leaves, base.get(path, {})).items()
    }
    return {**params, ADAPTER: paths.unflatten(started)}


def can_be_merged(method: Adapter) -> bool:
    """Returns whether a model without adapter can compute the same as a base with this adapter."""
    return implementation(method).merge is not None


def merge_adapter(method: Adapter, params: Params) -> Params:
    """Returns parameters of the base alone that compute the same as base and adapter.

    Raises:
      ConfigError: there are no such parameters, because the adapter computes something else.
    """
    merge = implementation(method).merge
    if merge is None:
        raise ConfigError(
            f"the adapter is {type(method).__name__}, which cannot be merged into a model; LoRA, "
            "DoRA and IA3 can"
        )
    modules = group_by_module({name: tree for name, tree in params.items() if name != ADAPTER})
    for path, leaves in group_adapter(params[ADAPTER]).items():
        modules[path] = merge(method, path, leaves, modules[path])
    merged = {f"{path}/{name}": leaf for path, m in modules.items() for name, leaf in m.items()}
    return paths.unflatten(merged)


def _check_equal_layers(adapter: Mapping[str, Any], modules: Mapping[str, Any]) -> None:
    """Raises ConfigError unless all layers are adapted alike, as one loop over them requires."""
    adapted: dict[str, set[str]] = {}
    for path in modules:
        if match := LAYER_PREFIX.match(path):
            names = adapted.setdefault(match[0], set())
            if path in adapter:
                names.add(path[match.end() :])
    if len({frozenset(names) for names in adapted.values()}) > 1:
        raise ConfigError(
            "train.tuning.method.targets selects some layers only, but objective.compute."
            "layer_loop 'scanned' needs layers that are alike; remove the number of the layer from "
            "the targets, or set objective.compute.layer_loop to 'unrolled'"
        )
