"""Freezes parameters of an objective, and computes how deep in the network a parameter is.

No gradient is computed for frozen parameters. The backward pass ends at the lowest depth that has a
trainable parameter.
"""

import re
from collections.abc import Iterable
from typing import Any

import jax

from bert_jax.functional import Params
from bert_jax.models.config import TransformerConfig
from bert_jax.objectives.base import MapParamsObjective, Objective
from bert_jax.params import paths


class FreezeParamsObjective(MapParamsObjective):
    """Wraps an objective; parameters that match one of `patterns` get no gradient."""

    def __init__(self, objective: Objective, patterns: tuple[str, ...]):
        super().__init__(objective)
        self._patterns = patterns

    def map_params(self, params: Params) -> Params:
        """Stops the gradient of frozen parameters."""

        def stop_gradient_if_frozen(path: str, leaf: Any) -> Any:
            is_frozen = paths.matches_any(self._patterns, path)
            return jax.lax.stop_gradient(leaf) if is_frozen else leaf

        return paths.map_with_path(stop_gradient_if_frozen, params)


# A group of ALBERT is the set of all layers that share the same parameters.
_LAYER = re.compile(r"encoder/(?:layers|groups)/(\d+)/")


def count_layers(params: Iterable[str]) -> int:
    """Returns the number of encoder layers among these parameter paths.

    Layers that share their parameters count as one, because one learning rate applies to all.
    """
    matches = (_LAYER.match(path) for path in params)
    return 1 + max((int(match[1]) for match in matches if match), default=-1)


def param_depth(path: str, num_layers: int) -> int:
    """Returns 0 for embeddings, k + 1 for layer k (from 0), num_layers + 1 for pooler and heads."""
    if match := _LAYER.match(path):
        return int(match[1]) + 1
    return 0 if path.startswith("encoder/") else num_layers + 1


def lowest_trainable_depth(params: Iterable[str], frozen: Iterable[str]) -> int:
    """Returns the smallest depth of the parameters that no pattern of `frozen` matches."""
    params, frozen = list(params), list(frozen)
    num_layers = count_layers(params)
    trainable_paths = (path for path in params if not paths.matches_any(frozen, path))
    return min((param_depth(path, num_layers) for path in trainable_paths), default=num_layers + 1)


def num_layers_with_gradients(model: TransformerConfig, lowest_trainable: int) -> int:
    """Returns how many layers the backward pass goes through if it ends at `lowest_trainable`."""
    return sum(model.layers_at_depth[max(0, lowest_trainable - 1) :])
