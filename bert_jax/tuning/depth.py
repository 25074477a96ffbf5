"""How deep in the network a parameter lies, by its path."""

import re
from collections.abc import Iterable

from bert_jax import paths

_LAYER = re.compile(r"encoder/layers/(\d+)/")


def layers_of(params: Iterable[str]) -> int:
    """The number of layers that these parameters have, given by their paths."""
    found = (_LAYER.match(path) for path in params)
    return 1 + max((int(match[1]) for match in found if match), default=-1)


def depth(path: str, layers: int) -> int:
    """0 for embeddings, k + 1 for layer k, layers + 1 for whatever stands on the encoder."""
    if match := _LAYER.match(path):
        return int(match[1]) + 1
    return 0 if path.startswith("encoder/") else layers + 1


def lowest_moving(params: Iterable[str], frozen: Iterable[str]) -> int:
    """The depth of the lowest of these parameters that no pattern of `frozen` matches."""
    params, frozen = list(params), list(frozen)
    layers = layers_of(params)
    moving = (
        path for path in params if not any(paths.matches(pattern, path) for pattern in frozen)
    )
    return min((depth(path, layers) for path in moving), default=layers + 1)


def layers_with_gradients(layers: int, lowest: int) -> int:
    """How many of the layers a backward pass goes through that ends at the depth `lowest`."""
    return max(0, min(layers, layers + 1 - lowest))
