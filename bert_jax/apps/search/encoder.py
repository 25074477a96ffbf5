"""Embeds queries and documents for search, and identifies the model that does."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.sparse import csr_array

from bert_jax.config import config_lib
from bert_jax.errors import ConfigError, UserError
from bert_jax.interop.sentence_folder import EmbeddingKind
from bert_jax.models.sentence_encoder.config import PoolingMode, TextRole
from bert_jax.params import paths
from bert_jax.predict.embedder import Embedder
from bert_jax.predict.multi_vector_embedder import MultiVectorEmbedder
from bert_jax.predict.sparse_embedder import SparseEmbedder
from bert_jax.pretrained.embedding_model import (
    MultiVectorModel,
    SparseModel,
    embedding_kind,
    multi_vector_model_of,
    sentence_model_of,
    sparse_model_of,
)
from bert_jax.pretrained.load import AnyModel, LoadedModel, require_encoder
from bert_jax.tasks.metrics.vectors import normalize_vectors


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
    """Embeds texts; what builds and queries an index needs.

    Relevance is the dot product, or MaxSim of several vectors.

    Attributes:
      num_truncated: number of documents so far that are longer than `max_length` tokens.
    """

    id: EncoderId
    kind: EmbeddingKind
    max_length: int
    num_truncated: int

    def encode_documents(self, texts: Sequence[str]) -> Any:
        """Returns the vectors of documents by their kind.

        dense          float32 [n, D]
        sparse         SciPy's csr_array, float32 [n, V]
        multi_vector   a list of n arrays, float32 [tokens, E]
        """
        ...

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """Returns the vectors of queries; see `encode_documents`."""
        ...


class DenseEncoder(Protocol):
    """Embeds each text as one dense vector, float32 [D]; relevance is the dot product."""

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray: ...

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray: ...


class EmbedderEncoder:
    """Embeds texts with an `Embedder`.

    Vectors are normalized, so that their dot product is the cosine, unless the similarity of the
    model is "dot". As `encode_query` and `encode_document` of sentence-transformers do, queries get
    the model's prompt "query", and documents "document", "passage" or "corpus", if there are any.

    Attributes:
      embedder: embeds texts of both roles.
      num_truncated: number of documents so far that are longer than `max_length` tokens.
    """

    kind: EmbeddingKind = "dense"

    def __init__(self, model: AnyModel, *, pooling: PoolingMode | None = None):
        """Moves the model to the device.

        Args:
          pooling: how hidden states become a vector; None: as in the model, or the mean.

        Raises:
          UserError: as `Embedder`; or vectors of the model are compared by a distance.
        """
        sentence_model = sentence_model_of(require_encoder(model, "embed"))
        self.embedder = Embedder(sentence_model, pooling=pooling)
        config = self.embedder.config
        if config.similarity not in ("cosine", "dot"):
            raise UserError(
                f"{model.path}: the similarity of the model is {config.similarity!r}; search "
                "supports 'cosine' and 'dot'"
            )
        self._is_normalized = config.similarity == "cosine"
        digests = paths.fingerprint(sentence_model.params), config_lib.fingerprint(config)
        self.id = EncoderId(model.path, "-".join(digests), pooling)
        self.max_length, self.num_truncated = self.embedder.max_length, 0

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the vectors of documents, float32 [n, D].

        Raises:
          UserError: a vector is not finite.
        """
        vectors, num_truncated = self._encode(texts, "document")
        self.num_truncated += num_truncated
        return vectors

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the vectors of queries, float32 [n, D].

        Raises:
          UserError: a vector is not finite.
        """
        return self._encode(texts, "query")[0]

    def _encode(self, texts: Sequence[str], role: TextRole) -> tuple[np.ndarray, int]:
        """Returns the vectors of texts, and how many texts were truncated."""
        prompt = self.embedder.config.prompt_of_role(role)
        vectors, truncated = self.embedder.embed(texts, prompt=prompt)
        check_finite_vectors(vectors, self.id.model)
        return normalize_vectors(vectors) if self._is_normalized else vectors, sum(truncated)


class SparseTextEncoder:
    """Embeds texts with a `SparseEmbedder`, queries and documents each with their prompt.

    Attributes:
      embedder: embeds texts of both roles.
      num_truncated: number of documents so far that are longer than `max_length` tokens.
    """

    kind: EmbeddingKind = "sparse"

    def __init__(self, model: LoadedModel):
        """Moves the model to the device; UserError as `SparseEmbedder`."""
        sparse_model = sparse_model_of(model)
        self.embedder = SparseEmbedder(sparse_model)
        self.id = _encoder_id(sparse_model)
        self.max_length, self.num_truncated = sparse_model.max_length, 0

    def encode_documents(self, texts: Sequence[str]) -> csr_array:
        """Returns the vectors of documents, float32 [n, V]; UserError if one is not finite."""
        vectors, truncated = self.embedder.embed(texts)
        self.num_truncated += sum(truncated)
        return self._checked(vectors)

    def encode_queries(self, texts: Sequence[str]) -> csr_array:
        """Returns the vectors of queries, float32 [n, V]; UserError if one is not finite."""
        return self._checked(self.embedder(texts, role="query"))

    def _checked(self, vectors: csr_array) -> csr_array:
        check_finite_texts(np.split(vectors.data, vectors.indptr[1:-1]), self.id.model)
        return vectors


class MultiVectorTextEncoder:
    """Embeds texts with a `MultiVectorEmbedder`, queries and documents each with their prompt.

    The vectors of a query of a model with the similarity "meanmaxsim" are divided by their number,
    so that the sum of their largest dot products is the mean.

    Attributes:
      embedder: embeds texts of both roles.
      num_truncated: number of documents so far that are longer than `max_length` tokens.
    """

    kind: EmbeddingKind = "multi_vector"

    def __init__(self, model: LoadedModel):
        """Moves the model to the device; UserError as `MultiVectorEmbedder`."""
        multi_vector_model = multi_vector_model_of(model)
        self.embedder = MultiVectorEmbedder(multi_vector_model)
        self.id = _encoder_id(multi_vector_model)
        self.max_length = self.embedder.config.length_of_role("document", model.config.max_length)
        self.num_truncated = 0

    def encode_documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns float32 [tokens, E] of each document; UserError if a vector is not finite."""
        embedded = self.embedder.embed(texts)
        self.num_truncated += sum(each.is_truncated for each in embedded)
        return check_finite_texts([each.vectors for each in embedded], self.id.model)

    def encode_queries(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns float32 [tokens, E] of each query; UserError if a vector is not finite."""
        vectors = check_finite_texts(self.embedder(texts, role="query"), self.id.model)
        if self.embedder.config.similarity == "maxsim":
            return vectors
        return [each / np.float32(max(len(each), 1)) for each in vectors]


def text_encoder_of(model: AnyModel, *, pooling: PoolingMode | None = None) -> TextEncoder:
    """Returns the encoder of a dense, sparse or multi-vector model.

    Args:
      pooling: as for `EmbedderEncoder`.

    Raises:
      ConfigError: there is a pooling for a model that is not dense.
      UserError: as the encoders.
    """
    model = require_encoder(model, "embed")
    kind = embedding_kind(model)
    if pooling is not None and kind != "dense":
        raise ConfigError(
            f"{model.path} is a {kind.replace('_', '-')} model, which does not use --pooling; "
            "remove it"
        )
    match kind:
        case "dense":
            return EmbedderEncoder(model, pooling=pooling)
        case "sparse":
            return SparseTextEncoder(model)
        case "multi_vector":
            return MultiVectorTextEncoder(model)


def _encoder_id(model: SparseModel | MultiVectorModel) -> EncoderId:
    digests = paths.fingerprint(model.params), config_lib.fingerprint(model.config)
    return EncoderId(model.model.path, "-".join(digests))


def check_finite_texts(vectors: list[np.ndarray], model: str) -> list[np.ndarray]:
    """Returns `vectors`; raises a UserError that names `model` if a text has one not finite."""
    for index, each in enumerate(vectors):
        if not np.isfinite(each).all():
            raise _not_finite(index, len(vectors), model)
    return vectors


def check_finite_vectors(vectors_ND: np.ndarray, model: str) -> None:
    """Raises a UserError that names `model` if a vector is not finite."""
    broken = np.flatnonzero(~np.isfinite(vectors_ND).all(axis=1))
    if broken.size:
        raise _not_finite(int(broken[0]), len(vectors_ND), model)


def _not_finite(index: int, count: int, model: str) -> UserError:
    return UserError(
        f"{model}: the vector of text {index + 1} of {count} has values that are not finite; use "
        "an earlier checkpoint, or fetch the model again"
    )
