"""Embeds queries and documents for search, and identifies the model that does."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from bert_jax.config import config_lib
from bert_jax.errors import UserError
from bert_jax.models.sentence_encoder.config import PoolingMode
from bert_jax.params import paths
from bert_jax.predict.embedder import Embedder
from bert_jax.pretrained.embedding_model import sentence_model_of
from bert_jax.pretrained.load import AnyModel, require_encoder
from bert_jax.tasks.metrics.vectors import normalize_vectors

_QUERY_PROMPTS = ("query",)
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")


class EncoderId(NamedTuple):
    """Identifies what embedded the texts of an index.

    Attributes:
      model: the path from which the model was loaded.
      fingerprint: of its parameters, and of pooling, prompts and what else makes a vector.
      pooling: the pooling that was chosen; None: as in the model.
    """

    model: str
    fingerprint: str
    pooling: PoolingMode | None = None


class TextEncoder(Protocol):
    """Embeds texts; what builds and queries an index needs. Relevance is the dot product."""

    id: EncoderId

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the vectors of documents, float32 [n, D]."""
        ...

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the vectors of queries, float32 [n, D]."""
        ...


class EmbedderEncoder:
    """Embeds texts with an `Embedder`.

    Vectors are normalized, so that their dot product is the cosine, unless the similarity of the
    model is "dot". As `encode_query` and `encode_document` of sentence-transformers do, queries get
    the model's prompt "query", and documents "document", "passage" or "corpus", if there are any.

    Attributes:
      num_truncated: number of documents so far that are longer than `max_length` tokens.
    """

    def __init__(self, model: AnyModel, *, pooling: PoolingMode | None = None):
        """Moves the model to the device.

        Args:
          pooling: how hidden states become a vector; None: as in the model, or the mean.

        Raises:
          UserError: as `Embedder`; or vectors of the model are compared by a distance.
        """
        sentence_model = sentence_model_of(require_encoder(model, "embed"))
        self._embed = Embedder(sentence_model, pooling=pooling)
        config = self._embed.config
        if config.similarity not in ("cosine", "dot"):
            raise UserError(
                f"{model.path}: the similarity of the model is {config.similarity!r}; search "
                "supports 'cosine' and 'dot'"
            )
        self._is_normalized = config.similarity == "cosine"
        names = [prompt.name for prompt in config.prompts]
        self._query_prompt = next((name for name in _QUERY_PROMPTS if name in names), None)
        self._document_prompt = next((name for name in _DOCUMENT_PROMPTS if name in names), None)
        digests = paths.fingerprint(sentence_model.params), config_lib.fingerprint(config)
        self.id = EncoderId(model.path, "-".join(digests), pooling)
        self.max_length, self.num_truncated = self._embed.max_length, 0

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the vectors of documents, float32 [n, D].

        Raises:
          UserError: a vector is not finite.
        """
        vectors, num_truncated = self._encode(texts, self._document_prompt)
        self.num_truncated += num_truncated
        return vectors

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the vectors of queries, float32 [n, D].

        Raises:
          UserError: a vector is not finite.
        """
        return self._encode(texts, self._query_prompt)[0]

    def _encode(self, texts: Sequence[str], prompt_name: str | None) -> tuple[np.ndarray, int]:
        """Returns the vectors of texts, and how many texts were truncated."""
        vectors, truncated = self._embed.embed(texts, prompt_name=prompt_name)
        check_finite_vectors(vectors, self.id.model)
        return normalize_vectors(vectors) if self._is_normalized else vectors, sum(truncated)


def check_finite_vectors(vectors_ND: np.ndarray, model: str) -> None:
    """Raises a UserError that names `model` if a vector is not finite."""
    broken = np.flatnonzero(~np.isfinite(vectors_ND).all(axis=1))
    if broken.size:
        raise UserError(
            f"{model}: the vector of text {broken[0] + 1} of {len(vectors_ND)} has values that are "
            "not finite; use an earlier checkpoint, or fetch the model again"
        )
