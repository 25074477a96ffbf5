"""Makes parameters like newly initialized ones, without compiling the initializer."""

from typing import Any

import numpy as np

from bert_jax.params import paths


def quick_init(abstract: Any, *, std: float = 0.02, seed: int = 0) -> Any:
    """Returns scales of 1, biases of 0, and normally distributed values for everything else.

    Initializing even a small network compiles a program, which takes a second.

    Args:
      abstract: the tree of shapes that `abstract()` of a network or an objective returns.
      std: the standard deviation.
      seed: the seed of the values.
    """
    rng = np.random.default_rng(seed)

    def value(path: str, shape: tuple[int, ...]) -> np.ndarray:
        if path.endswith(("scale", "bias")):
            return np.full(shape, path.endswith("scale"), np.float32)
        return rng.normal(0, std, shape).astype(np.float32)

    flat = paths.flatten(abstract)
    return paths.unflatten({path: value(path, leaf.shape) for path, leaf in flat.items()})
