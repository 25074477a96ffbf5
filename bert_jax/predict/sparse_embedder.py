"""Computes sparse vectors of texts: a weight for each token of the vocabulary (SPLADE).

from bert_jax.predict.sparse_embedder import SparseEmbedder
embed = SparseEmbedder(load_model("splade"))
documents = embed(["A man repairs a net."])              # SciPy's csr_array [1, V]
queries = embed(["Who repairs nets?"], role="query")
scores = (queries @ documents.T).toarray()
embed.weights(documents)[0]                              # {"net": 1.9, "repair": 1.4, ...}
"""

import functools
from collections.abc import Mapping, Sequence

import jax
import numpy as np
import scipy.sparse

from bert_jax.data.sentence_embeddings.role_tokens import RoleTokens, tokenize_for_role
from bert_jax.errors import require_list_of_texts
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.sentence_encoder.config import SparseEncoderConfig, TextRole
from bert_jax.models.sentence_encoder.sparse import build_sparse_encoder
from bert_jax.params.functional import Params
from bert_jax.predict.batches import padded_batches
from bert_jax.predict.embedder import prompt_for
from bert_jax.pretrained.embedding_model import SparseModel, sparse_model_of
from bert_jax.pretrained.load import AnyModel, require_encoder, require_tokenizer
from bert_jax.text.tokenizer import Tokenizer

SparseRow = tuple[np.ndarray, np.ndarray]
"""The indices of a sparse vector, int32, ascending, and its values, float32."""


class SparseEmbedder:
    """Embeds texts with a sparse model, of a folder of `SparseEncoder` or a run.

    Attributes:
      config: the pooling, and how texts are read.
      embedding_size: V, the size of the vocabulary.
      max_length: to how many tokens documents are truncated, special tokens included.
      num_truncated: number of texts so far that were truncated.
    """

    def __init__(self, model: AnyModel | SparseModel, *, max_active_dims: int | None = None):
        """Moves the parameters to the device.

        Args:
          max_active_dims: the number of largest weights of a text that are kept; None: as in the
            model.

        Raises:
          UserError: the model has no tokenizer, is not sparse, or its files are damaged.
        """
        if not isinstance(model, SparseModel):
            model = sparse_model_of(require_encoder(model, "embed"))
        self._model, self.config = model, model.config
        self._tokenizer = require_tokenizer(model.model)
        self._max_active_dims = max_active_dims or self.config.max_active_dims
        self.embedding_size = model.model.config.vocab_size
        self.max_length, self.num_truncated = model.max_length, 0
        self._params: Params = jax.device_put(model.params)
        self._compiled = jax.jit(
            functools.partial(_embed, encoder_config=model.model.config, config=self.config)
        )

    def __repr__(self) -> str:
        """Returns one line with the model and the size of its vectors."""
        size = f"sparse vectors of {self.embedding_size}, at most {self.max_length} tokens"
        return f"<SparseEmbedder {self._model.model.path}: {size}>"

    def __call__(
        self,
        texts: Sequence[str],
        *,
        role: TextRole = "document",
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> scipy.sparse.csr_array:
        """Returns the vectors of texts, float32 [N, V]; the arguments are as for `embed`."""
        return self.embed(texts, role=role, prompt_name=prompt_name, prompt=prompt)[0]

    def embed(
        self,
        texts: Sequence[str],
        *,
        role: TextRole = "document",
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> tuple[scipy.sparse.csr_array, list[bool]]:
        """Returns the vectors of texts, float32 [N, V], and whether each text was truncated.

        An empty document has the vector of its special tokens, and an empty query of a model with
        static queries has no weight.

        Args:
          role: whether the texts are queries or documents, which have different prompts.
          prompt_name: the name of one of the model's prompts; None is that of the role.
          prompt: the prompt itself, in place of a name; "" for no prompt.

        Raises:
          UserError: the model has no such prompt, or both are given.
        """
        require_list_of_texts(texts)
        prefix = prompt_for(self._model, role, prompt_name, prompt)
        longest = self._model.model.config.max_length
        tokens = tokenize_for_role(texts, self._tokenizer, self.config, role, prefix, longest)
        is_static = role == "query" and self.config.has_static_queries
        rows = (self._static_queries if is_static else self._documents)(tokens)
        truncated = [each.is_truncated for each in tokens]
        self.num_truncated += sum(truncated)
        return stack_rows(rows, self.embedding_size), truncated

    def weights(self, vectors: scipy.sparse.csr_array) -> list[dict[str, float]]:
        """Returns the weight of each token that has one, largest first, for each vector."""
        return name_weights(vectors, self._tokenizer)

    def _documents(self, tokens: Sequence[RoleTokens]) -> list[SparseRow]:
        rows: list[SparseRow] = [(np.zeros(0, np.int32), np.zeros(0, np.float32))] * len(tokens)
        sequences = [each.input_ids.tolist() for each in tokens]
        pad_id = self._tokenizer.pad_id
        # Each batch is made sparse at once: the vectors of all texts would not fit into memory.
        for indices, batch in padded_batches(sequences, pad_id=pad_id, max_length=self.max_length):
            vectors = jax.device_get(self._compiled(self._params, batch))
            for index, vector in zip(indices, vectors, strict=False):
                rows[index] = largest_weights(vector, self._max_active_dims)
        return rows

    def _static_queries(self, tokens: Sequence[RoleTokens]) -> list[SparseRow]:
        weights = np.asarray(self._model.head_params["query_weights"])
        vectors = np.zeros((len(tokens), self.embedding_size), np.float32)
        for vector, each in zip(vectors, tokens, strict=True):
            vector[each.input_ids] = weights[each.input_ids]
        return [largest_weights(vector, self._max_active_dims) for vector in vectors]


def stack_rows(rows: Sequence[SparseRow], size: int) -> scipy.sparse.csr_array:
    """Returns sparse vectors of `size` components as a matrix, float32 [N, size]."""
    return scipy.sparse.csr_array(
        (
            np.concatenate([np.zeros(0, np.float32), *(values for _, values in rows)]),
            np.concatenate([np.zeros(0, np.int32), *(indices for indices, _ in rows)]),
            np.cumsum([0, *(len(indices) for indices, _ in rows)]),
        ),
        shape=(len(rows), size),
    )


def name_weights(vectors: scipy.sparse.csr_array, tokenizer: Tokenizer) -> list[dict[str, float]]:
    """Returns the weight of each token that has one, largest first, for each vector [N, V]."""
    result: list[dict[str, float]] = []
    data = np.asarray(vectors.data, np.float32)
    for start, end in zip(vectors.indptr[:-1], vectors.indptr[1:], strict=True):
        indices, values = vectors.indices[start:end], data[start:end]
        order = np.argsort(-values, kind="stable")
        names = (_token_name(int(indices[index]), tokenizer) for index in order)
        result.append(dict(zip(names, values[order].tolist(), strict=True)))
    return result


def _token_name(token_id: int, tokenizer: Tokenizer) -> str:
    # The table of some models has more rows than the tokenizer has tokens.
    return tokenizer.id_to_token(token_id) if token_id < tokenizer.vocab_size else f"[{token_id}]"


def largest_weights(vector: np.ndarray, limit: int | None) -> SparseRow:
    """Returns the indices, int32, and values of a vector that are not 0, ascending by index.

    Args:
      limit: how many are returned, the largest; None: all.
    """
    indices = np.flatnonzero(vector)
    if limit is not None and len(indices) > limit:
        order = np.argsort(-vector[indices], kind="stable")[:limit]
        indices = np.sort(indices[order])
    return indices.astype(np.int32), vector[indices]


def _embed(
    params: Params,
    batch: Mapping[str, jax.Array],
    *,
    encoder_config: EncoderConfig,
    config: SparseEncoderConfig,
) -> jax.Array:
    return build_sparse_encoder(encoder_config, config).merge(params).embed(batch)
