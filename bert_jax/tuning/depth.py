"""How deep in the network a parameter lies, by its path."""

import re
from collections.abc import Iterable

_LAYER = re.compile(r"encoder/layers/(\d+)/")


def layers_of(paths: Iterable[str]) -> int:
    """The number of layers that these parameters have."""
    found = (_LAYER.match(path) for path in paths)
    return 1 + max((int(match[1]) for match in found if match), default=-1)


def depth(path: str, layers: int) -> int:
    """0 for embeddings, k + 1 for layer k, layers + 1 for whatever stands on the encoder."""
    if match := _LAYER.match(path):
        return int(match[1]) + 1
    return 0 if path.startswith("encoder/") else layers + 1
