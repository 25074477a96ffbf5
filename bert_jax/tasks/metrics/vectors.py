"""Normalizes vectors in NumPy."""

import numpy as np


def normalize_vectors(vectors: np.ndarray) -> np.ndarray:
    """Divides vectors [..., D] by their Euclidean norms; a norm below 1e-12 counts as 1e-12.

    So a vector of zeros stays one, as in PyTorch's `normalize`.
    """
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(norms, vectors.dtype.type(1e-12))
