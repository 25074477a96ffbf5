"""Computes a vector for each token of a text, and late-interaction scores (ColBERT).

from bert_jax.predict.multi_vector_embedder import MultiVectorEmbedder
embed = MultiVectorEmbedder(load_model("colbert"))
documents = embed(["A man repairs a net."])              # a float32 array [tokens, E] for each
queries = embed(["Who repairs nets?"], role="query")
embed.scores(queries, documents)                         # float32 [queries, documents]
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from bert_jax.data.sentence_embeddings.role_tokens import tokenize_for_role
from bert_jax.errors import UserError, require_list_of_texts
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.sentence_encoder.config import (
    SENTENCE_HEAD,
    TEXT_ROLES,
    MultiVectorEncoderConfig,
    TextRole,
)
from bert_jax.models.sentence_encoder.multi_vector import build_multi_vector_encoder
from bert_jax.params.functional import Params
from bert_jax.predict.batches import padded_batches
from bert_jax.predict.embedder import prompt_for
from bert_jax.pretrained.embedding_model import MultiVectorModel, multi_vector_model_of
from bert_jax.pretrained.load import AnyModel, require_encoder, require_tokenizer

_PRODUCTS_PER_CHUNK = 2**26
"""Dot products of vectors that exist at once when texts are scored."""


class TokenVectors(NamedTuple):
    """Holds the vectors of a text.

    Attributes:
      vectors: float32 [tokens, E].
      token_ids: int32 [tokens], the token of each vector.
      is_truncated: whether the text was longer than the model reads.
    """

    vectors: np.ndarray
    token_ids: np.ndarray
    is_truncated: bool


class MultiVectorEmbedder:
    """Embeds texts with a multi-vector model, of a folder of `MultiVectorEncoder` or PyLate.

    Attributes:
      config: what follows the encoder, and how texts are read.
      embedding_size: E, the number of components of a vector.
      num_truncated: number of texts so far that were truncated.
    """

    def __init__(self, model: AnyModel | MultiVectorModel):
        """Moves the parameters to the device.

        Raises:
          UserError: the model has no tokenizer, is not multi-vector, or its files are damaged.
        """
        if not isinstance(model, MultiVectorModel):
            model = multi_vector_model_of(require_encoder(model, "embed"))
        self._model, self.config = model, model.config
        self._tokenizer = require_tokenizer(model.model)
        self.embedding_size = self.config.embedding_size(model.model.config.hidden_size)
        self.num_truncated = 0
        self._params: Params = jax.device_put(model.params)
        self._compiled = {
            role: jax.jit(
                functools.partial(
                    _embed, encoder_config=model.model.config, config=self.config, role=role
                )
            )
            for role in TEXT_ROLES
        }

    def __repr__(self) -> str:
        """Returns one line with the model and the size of its vectors."""
        size = f"a vector of {self.embedding_size} for each token"
        return f"<MultiVectorEmbedder {self._model.model.path}: {size}>"

    def __call__(
        self,
        texts: Sequence[str],
        *,
        role: TextRole = "document",
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> list[np.ndarray]:
        """Returns the vectors of each text, float32 [tokens, E]; arguments as for `embed`."""
        embedded = self.embed(texts, role=role, prompt_name=prompt_name, prompt=prompt)
        return [each.vectors for each in embedded]

    def embed(
        self,
        texts: Sequence[str],
        *,
        role: TextRole = "document",
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> list[TokenVectors]:
        """Returns the vectors of each text with their tokens, and whether it was truncated.

        Args:
          role: whether the texts are queries or documents, which have different prompts, lengths
            and tokens without a vector.
          prompt_name: the name of one of the model's prompts; None is that of the role.
          prompt: the prompt itself, in place of a name; "" for no prompt.

        Raises:
          UserError: the model has no such prompt, or both are given.
        """
        require_list_of_texts(texts)
        prefix = prompt_for(self._model, role, prompt_name, prompt)
        longest = self._model.model.config.max_length
        built = tokenize_for_role(texts, self._tokenizer, self.config, role, prefix, longest)
        sequences = [each.input_ids.tolist() for each in built]
        results: dict[int, TokenVectors] = {}
        pad_id = self._tokenizer.pad_id
        for indices, batch in padded_batches(sequences, pad_id=pad_id, max_length=longest):
            outputs = jax.device_get(self._compiled[role](self._params, batch))
            for index, vectors, ids, has_vector in zip(indices, *outputs, strict=False):
                results[index] = TokenVectors(
                    vectors[has_vector], ids[has_vector], built[index].is_truncated
                )
        embedded = [results[index] for index in range(len(texts))]
        self.num_truncated += sum(each.is_truncated for each in embedded)
        return embedded

    def tokens(self, embedded: TokenVectors) -> list[str]:
        """Returns the token of each vector of a text."""
        return [self._tokenizer.id_to_token(int(token_id)) for token_id in embedded.token_ids]

    def scores(self, queries: Sequence[np.ndarray], documents: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the score of each query with each document, float32 [queries, documents].

        Args:
          queries, documents: the vectors of texts, float32 [tokens, E].

        Raises:
          UserError: a text has no vector.
        """
        if not queries or not documents:
            return np.zeros((len(queries), len(documents)), np.float32)
        lengths = np.array([len(query) for query in queries])
        if min(lengths) == 0 or min(map(len, documents)) == 0:
            raise UserError("a text without vectors cannot be scored; expected at least one token")
        vectors, starts = np.concatenate(queries), np.cumsum([0, *lengths[:-1]])
        columns: list[np.ndarray] = []
        size = max(_PRODUCTS_PER_CHUNK // (len(vectors) * max(map(len, documents))), 1)
        for first in range(0, len(documents), size):
            chunk = documents[first : first + size]
            products = vectors @ np.concatenate(chunk).T
            ends = np.cumsum([0, *map(len, chunk[:-1])])
            columns.append(np.add.reduceat(np.maximum.reduceat(products, ends, axis=1), starts))
        scores = np.concatenate(columns, axis=1)
        return scores / lengths[:, None] if self.config.similarity == "meanmaxsim" else scores


def _embed(
    params: Params,
    batch: Mapping[str, jax.Array],
    *,
    encoder_config: EncoderConfig,
    config: MultiVectorEncoderConfig,
    role: TextRole,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns (vectors [B, L, E], token ids [B, L], whether each counts [B, L])."""
    network = build_multi_vector_encoder(encoder_config, config).merge(
        {SENTENCE_HEAD: {}, **params}
    )
    return network.embed(batch, role)
