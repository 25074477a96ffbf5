"""Serves sparse and multi-vector models: weights of tokens, a vector for each token, and MaxSim.

Texts are tokenized as `SparseEmbedder` and `MultiVectorEmbedder` do, by their role in a search. A
model with dense, sparse and multi-vector heads (BGE-M3) computes all of them in one pass.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np

from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.encoder_services import (
    EmbeddingService,
    Work,
    count_characters,
    refuse_long,
)
from bert_jax.apps.serve.request_error import RequestError
from bert_jax.data.sentence_embeddings.role_tokens import RoleTokens, tokenize_for_role
from bert_jax.errors import UserError
from bert_jax.interop.m3_heads import m3_heads_of, read_m3_head
from bert_jax.interop.sentence_folder import EmbeddingKind
from bert_jax.models.sentence_encoder.config import (
    SENTENCE_HEAD,
    TEXT_ROLES,
    LateInteraction,
    TextRole,
)
from bert_jax.models.sentence_encoder.multi_vector import build_multi_vector_encoder
from bert_jax.models.sentence_encoder.sparse import build_sparse_encoder
from bert_jax.params.functional import Params
from bert_jax.predict.batches import Arrays, Buckets, Engine, JaxBackend, TokenSequence
from bert_jax.predict.embedder import choose_prompt
from bert_jax.predict.m3_embedder import largest_of_tokens
from bert_jax.predict.sparse_embedder import largest_weights
from bert_jax.pretrained.embedding_model import (
    MultiVectorModel,
    SparseModel,
    multi_vector_model_of,
    sparse_model_of,
)
from bert_jax.pretrained.load import LoadedModel, require_tokenizer


class _RetrievalService:
    """Tokenizes queries and documents of a model.

    Attributes:
      max_length: maximum number of tokens of a text.
    """

    def __init__(self, model: SparseModel | MultiVectorModel, config: ServerConfig):
        self._tokenizer, self._config = require_tokenizer(model.model), model.config
        longest = model.model.config.max_length
        self.max_length = min(config.max_length or longest, longest)

    def _make_engine(self, name: str, compute: Any, params: Any, config: ServerConfig) -> Engine:
        return Engine(
            name,
            JaxBackend(compute, params),
            Buckets(self.max_length, config.max_batch_tokens, config.max_batch_rows),
            pad_id=self._tokenizer.pad_id,
        )

    def _tokenize(
        self, texts: Sequence[str], role: TextRole, prompt_name: str | None, truncate: bool
    ) -> list[RoleTokens]:
        if prompt_name is None:
            prompt = self._config.prompt_of_role(role)
        else:
            try:
                prompt = choose_prompt(self._config, prompt_name, None)
            except UserError as error:
                raise RequestError("validation", str(error), "prompt_name") from None
        longest = self.max_length
        tokens = tokenize_for_role(texts, self._tokenizer, self._config, role, prompt, longest)
        if not truncate:
            cut = [each for each in tokens if each.is_truncated]
            refuse_long(len(cut), max((len(each.input_ids) for each in cut), default=0))
        return tokens

    def _work(
        self,
        engine: Engine,
        texts: Sequence[str],
        tokens: Sequence[RoleTokens],
        outputs: tuple[str, ...],
        decode: Callable[[Sequence[Arrays]], Any],
    ) -> Work[Any]:
        sequences = [
            TokenSequence(
                input_ids=each.input_ids, token_type_ids=each.token_type_ids, outputs=outputs
            )
            for each in tokens
        ]
        return Work(
            engine=engine,
            sequences=sequences if outputs else [],
            decode=decode,
            num_characters=count_characters(texts),
            num_truncated=sum(each.is_truncated for each in tokens),
        )


class SparseService(_RetrievalService):
    """Makes the vectors of a sparse model (SPLADE).

    Attributes:
      engines: one, which computes the vectors of documents, and of queries unless they are static.
    """

    def __init__(self, name: str, model: LoadedModel, config: ServerConfig):
        """Moves the model to the device; UserError as `sparse_model_of`."""
        self._model = sparse_model_of(model)
        super().__init__(self._model, config)
        network = build_sparse_encoder(model.config, self._model.config)

        def compute(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            return {"weights": network.merge(params).embed(batch)}

        name = f"the sparse vectors of {name}"
        self.engines = [self._make_engine(name, compute, self._model.params, config)]

    def embed(
        self,
        texts: Sequence[str],
        *,
        role: TextRole = "document",
        prompt_name: str | None = None,
        truncate: bool = True,
    ) -> Work[list[list[dict[str, Any]]]]:
        """Tokenizes texts; the result is [{"index", "value"}] of each, ascending by index.

        Raises:
          RequestError: there is no such prompt, or a text is too long and `truncate` is False.
        """
        tokens = self._tokenize(texts, role, prompt_name, truncate)
        if role == "query" and self._model.config.has_static_queries:
            # No output is needed of the encoder: the weight of a token is a row of a table.
            weights = np.asarray(self._model.head_params["query_weights"], np.float32)
            ids = [np.unique(each.input_ids) for each in tokens]
            return self._work(
                self.engines[0],
                texts,
                tokens,
                (),
                lambda _: [_to_json(row, weights[row]) for row in ids],
            )

        def decode(outputs: Sequence[Arrays]) -> list[list[dict[str, Any]]]:
            limit = self._model.config.max_active_dims
            return [_to_json(*largest_weights(output["weights"], limit)) for output in outputs]

        return self._work(self.engines[0], texts, tokens, ("weights",), decode)


def _to_json(indices: np.ndarray, values: np.ndarray) -> list[dict[str, Any]]:
    pairs = zip(indices.tolist(), values.tolist(), strict=True)
    return [{"index": index, "value": value} for index, value in pairs if value]


class MultiVectorService(_RetrievalService):
    """Makes the vectors of all tokens with a multi-vector model (ColBERT), and compares texts.

    Attributes:
      engines: one for queries and one for documents.
      width: number of components of a vector.
      similarity: how vectors are compared: "maxsim" or "meanmaxsim".
    """

    def __init__(self, name: str, model: LoadedModel, config: ServerConfig):
        """Moves the model to the device; UserError as `multi_vector_model_of`."""
        multi_vector = multi_vector_model_of(model)
        super().__init__(multi_vector, config)
        self.width = multi_vector.config.embedding_size(model.config.hidden_size)
        self.similarity: LateInteraction = multi_vector.config.similarity
        network = build_multi_vector_encoder(model.config, multi_vector.config)
        params = jax.device_put({SENTENCE_HEAD: {}, **multi_vector.params})

        def make_engine(role: TextRole) -> Engine:
            def compute(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
                vectors, _, has_vector = network.merge(params).embed(batch, role)
                return {"vectors": vectors, "has_vector": has_vector}

            purpose = "queries" if role == "query" else "documents"
            return self._make_engine(f"the {purpose} of {name}", compute, params, config)

        self._by_role = {role: make_engine(role) for role in TEXT_ROLES}
        self.engines = list(self._by_role.values())

    def embed(
        self, texts: Sequence[str], *, role: TextRole = "document", truncate: bool = True
    ) -> Work[list[np.ndarray]]:
        """Tokenizes texts; the result is float32 [tokens, E] of each.

        Raises:
          RequestError: a text is too long and `truncate` is False.
        """
        tokens = self._tokenize(texts, role, None, truncate)

        def decode(outputs: Sequence[Arrays]) -> list[np.ndarray]:
            return [output["vectors"][output["has_vector"]] for output in outputs]

        outputs = ("vectors", "has_vector")
        return self._work(self._by_role[role], texts, tokens, outputs, decode)


def maxsim_scores(
    query: np.ndarray, documents: Sequence[np.ndarray], similarity: LateInteraction
) -> list[float]:
    """Returns the score of a query with each document; with no vector, the score is 0.

    Args:
      query: the vectors of its tokens, float32 [tokens, E].
      documents: likewise.
    """
    # NumPy and not JAX, which would compile a program for each length.
    if not len(query):
        return [0.0] * len(documents)
    scores = [
        float((query @ document.T).max(axis=1).sum()) if len(document) else 0.0
        for document in documents
    ]
    return [score / len(query) for score in scores] if similarity == "meanmaxsim" else scores


class M3Service(EmbeddingService):
    """Makes dense, sparse and multi-vector embeddings in one pass; see `M3Embedder`.

    Attributes:
      kinds: what the model has heads for.
      vector_width: number of components of the vector of a token; 0 without that head.
    """

    def __init__(self, name: str, model: LoadedModel, config: ServerConfig):
        """Moves the model and its heads to the device.

        Raises:
          UserError: as `EmbeddingService`, or the file of a head is damaged.
        """
        folder, width = Path(model.path), model.config.hidden_size
        kinds = m3_heads_of(folder)
        heads: Params = {kind: read_m3_head(folder, kind, width) for kind in kinds}
        super().__init__(name, model, config, token_heads=heads)
        self.kinds: tuple[EmbeddingKind, ...] = ("dense", *kinds)
        self.vector_width = len(heads["multi_vector"]["bias"]) if "multi_vector" in heads else 0

    def embed_heads(
        self,
        texts: Sequence[str],
        kinds: Sequence[EmbeddingKind],
        *,
        prompt_name: str | None = None,
        truncate: bool = True,
    ) -> Work[dict[EmbeddingKind, list[Any]]]:
        """Tokenizes texts; the result has the embeddings of all texts for each of `kinds`.

        A dense one is float32 [D], normalized; a sparse one [{"index", "value"}], ascending by
        index; a multi-vector one float32 [tokens, E].

        Raises:
          RequestError: the model has no such head or prompt, or a text is too long and `truncate`
            is False.
        """
        unknown = [kind for kind in kinds if kind not in self.kinds]
        if unknown or not kinds:
            message = (
                f"`heads` has {unknown[0]!r}, for which the model has no head; expected any of "
                f"{', '.join(self.kinds)}"
                if unknown
                else f"`heads` is empty; expected any of {', '.join(self.kinds)}, or no `heads` "
                "for all of them"
            )
            raise RequestError("validation", message, "heads")

        def decode(
            outputs: Sequence[Arrays], ids: Sequence[np.ndarray]
        ) -> dict[EmbeddingKind, list[Any]]:
            pairs = list(zip(outputs, ids, strict=True))
            found: dict[EmbeddingKind, list[Any]] = {}
            for kind in kinds:
                match kind:
                    case "dense":
                        found[kind] = list(self._vectors(outputs))
                    case "sparse":
                        found[kind] = [
                            _to_json(
                                *largest_of_tokens(
                                    text_ids, output[kind][: len(text_ids)], self.tokenizer
                                )
                            )
                            for output, text_ids in pairs
                        ]
                    case "multi_vector":  # [CLS] has no vector
                        found[kind] = [
                            output[kind][1 : len(text_ids)] for output, text_ids in pairs
                        ]
            return found

        outputs = tuple("embedding" if kind == "dense" else kind for kind in kinds)
        return self._work(texts, outputs, decode, truncate, keep_end=False, prompt_name=prompt_name)


class _M3Head:
    """Makes the embeddings of one head of an `M3Service`, which reads texts of all roles alike."""

    kind: EmbeddingKind

    def __init__(self, service: M3Service):
        self._service, self.max_length, self.engines = service, service.max_length, [service.engine]

    def embed(
        self,
        texts: Sequence[str],
        *,
        role: TextRole = "document",
        prompt_name: str | None = None,
        truncate: bool = True,
    ) -> Work[list[Any]]:
        """Tokenizes texts; see `M3Service.embed_heads` for the result and the errors."""
        work = self._service.embed_heads(
            texts, (self.kind,), prompt_name=prompt_name, truncate=truncate
        )
        return work.map(lambda found: found[self.kind])


class M3SparseService(_M3Head):
    """Serves as a `SparseService`."""

    kind = "sparse"


class M3MultiVectorService(_M3Head):
    """Serves as a `MultiVectorService`, with BGE-M3's mean over the tokens of a query."""

    kind = "multi_vector"
    similarity: Final = "meanmaxsim"

    @property
    def width(self) -> int:
        """Returns the number of components of a vector."""
        return self._service.vector_width
