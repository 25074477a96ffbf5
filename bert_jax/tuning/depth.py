"""Computes the depth of a parameter in the network from its path."""

import re
from collections.abc import Iterable

from bert_jax.params import paths

_LAYER = re.compile(r"encoder/layers/(\d+)/")


def count_layers(params: Iterable[str]) -> int:
    """Returns the number of encoder layers among these parameter paths."""
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
    trainable_paths = (
        path for path in params if not any(paths.matches(pattern, path) for pattern in frozen)
    )
    return min((param_depth(path, num_layers) for path in trainable_paths), default=num_layers + 1)


def num_layers_with_gradients(num_layers: int, lowest_trainable: int) -> int:
    """Returns how many layers the backward pass goes through if it ends at `lowest_trainable`."""
    return max(0, min(num_layers, num_layers + 1 - lowest_trainable))
