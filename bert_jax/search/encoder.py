"""Embeds queries and documents for search, with unit length, and identifies the model."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from bert_jax.errors import UserError
from bert_jax.params import paths
from bert_jax.predict.embedder import Embedder, Pooling
from bert_jax.pretrained.load import LoadedModel


class EncoderId(NamedTuple):
    """Identifies what embedded the texts of an index.

    Attributes:
      model: the path from which the model was loaded.
      fingerprint: of its parameters and of how the hidden states are pooled.
      pooling: how they are pooled.
    """

    model: str
    fingerprint: str
    pooling: Pooling


class TextEncoder(Protocol):
    """Embeds texts; what builds and queries an index needs."""

    id: EncoderId

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Returns vectors of length 1, float32 [n, D]; their dot product is the cosine."""
        ...


class EmbedderEncoder:
    """Embeds texts with an `Embedder`, and normalizes the vectors."""

    def __init__(self, model: LoadedModel, *, pooling: Pooling = "mean"):
        """Moves the model to the device; the arguments are those of `Embedder`."""
        self._embed = Embedder(model, pooling=pooling)
        digest = paths.fingerprint({"encoder": model.params["encoder"]})
        self.id = EncoderId(model.path, f"{digest}-{pooling}", pooling)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Returns vectors of length 1, float32 [n, D].

        Raises:
          UserError: a vector is not finite.
        """
        vectors = np.stack([embedding.vector for embedding in self._embed(list(texts))])
        return normalize(vectors, self.id.model)


def normalize(vectors_ND: np.ndarray, model: str) -> np.ndarray:
    """Divides vectors by their length; a vector of zeros stays.

    Raises:
      UserError: a vector is not finite; names `model`.
    """
    broken = np.flatnonzero(~np.isfinite(vectors_ND).all(axis=1))
    if broken.size:
        raise UserError(
            f"{model}: the vector of text {broken[0] + 1} of {len(vectors_ND)} has values that are "
            "not finite; use an earlier checkpoint, or fetch the model again"
        )
    lengths = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return (vectors_ND / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)
