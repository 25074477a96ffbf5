"""Computes a vector for each token of a text, and the late interaction of two texts (ColBERT).

The parameters are the encoder's and "sentence_head/dense/<i>/{kernel,bias}", where i counts the
`Dense` modules.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.model import Batch, EncoderWithHeads
from bert_jax.models.sentence_encoder.config import MultiVectorEncoderConfig, TextRole
from bert_jax.models.sentence_encoder.network import VectorModules
from bert_jax.params.functional import Network


class MultiVectorEncoder(EncoderWithHeads):
    """Runs an encoder, and projects and normalizes the hidden state of each token."""

    def __init__(
        self,
        config: EncoderConfig,
        multi_vector_config: MultiVectorEncoderConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
    ):
        """Initializes all parameters; ConfigError if a dense layer does not fit."""
        super().__init__(config, compute, rngs)
        multi_vector_config.embedding_size(config.hidden_size)
        self.multi_vector_config = multi_vector_config
        self.sentence_head = VectorModules(multi_vector_config.modules, rngs)

    def embed(
        self, batch: Batch, role: TextRole, dropout_key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Computes the vectors of the tokens in a batch.

        Args:
          batch: the encoder's fields, int32 [B, L], without the expansion of queries.
          role: whether the texts are queries or documents.
          dropout_key: None to apply no dropout.

        Returns:
          (vectors, float32 [B, L, E]; the tokens with the expansion, int32 [B, L]; whether the text
          has this vector, bool [B, L]). With an expansion of queries, L is at least its length.
        """
        if role == "query":
            batch = expand_queries(batch, self.multi_vector_config)
        hidden_BLD = self.encode(batch, dropout_key).last_hidden_state
        vectors = self.sentence_head.apply_modules(hidden_BLD.astype(jnp.float32))
        has = has_vector(batch, role, self.multi_vector_config)
        return vectors, batch["input_ids"], has


def expand_queries(batch: Batch, config: MultiVectorEncoderConfig) -> dict[str, jax.Array]:
    """Puts the expansion tokens into the padding of queries; widens the batch if it is too short.

    Args:
      batch: the encoder's fields, int32 [B, L].
    """
    if (expansion := config.expansion) is None:
        return dict(batch)
    missing = max(expansion.length - batch["input_ids"].shape[1], 0)
    batch = {name: jnp.pad(values, ((0, 0), (0, missing))) for name, values in batch.items()}
    is_expansion = _is_expansion(batch, config)
    ids = jnp.where(is_expansion, expansion.token_id, batch["input_ids"])
    mask = batch["attention_mask"]
    if expansion.is_attended:
        mask = jnp.where(is_expansion, 1, mask)
    return {**batch, "input_ids": ids, "attention_mask": mask}


def has_vector(batch: Batch, role: TextRole, config: MultiVectorEncoderConfig) -> jax.Array:
    """Returns whether each token has a vector that is compared, bool [B, L].

    Args:
      batch: the encoder's fields, after `expand_queries` for queries.
    """
    has = batch["attention_mask"] > 0
    if role == "query" and config.expansion is not None:
        has |= _is_expansion(batch, config)
    if role in config.skip_roles and config.skip_token_ids:
        has &= ~jnp.isin(batch["input_ids"], jnp.array(config.skip_token_ids, jnp.int32))
    return has


def _is_expansion(batch: Batch, config: MultiVectorEncoderConfig) -> jax.Array:
    assert config.expansion is not None
    positions_L = jnp.arange(batch["input_ids"].shape[1])
    return (batch["attention_mask"] == 0) & (positions_L < config.expansion.length)


def max_sim(
    queries: jax.Array,
    queries_have: jax.Array,
    documents: jax.Array,
    documents_have: jax.Array,
    *,
    is_mean: bool = False,
) -> jax.Array:
    """Computes the late interaction of all queries with all documents, float32 [Q, D].

    It is the sum over the vectors of a query of the largest dot product with a vector of the
    document (Khattab and Zaharia 2020, section 3.3).

    Args:
      queries: float32 [Q, M, E].
      queries_have: bool [Q, M], whether a query has this vector.
      documents: float32 [D, N, E].
      documents_have: bool [D, N], whether a document has this vector.
      is_mean: whether the sum is divided by the number of vectors of the query ("meanmaxsim").
    """
    products = jnp.einsum("qme,dne->qdmn", queries, documents, precision=jax.lax.Precision.HIGHEST)
    products = jnp.where(documents_have[None, :, None, :], products, -jnp.inf)
    largest = jnp.where(queries_have[:, None, :], jnp.max(products, axis=-1), 0.0)
    scores = jnp.sum(largest, axis=-1)
    if not is_mean:
        return scores
    counts = jnp.sum(queries_have, axis=-1).astype(jnp.float32)
    return scores / jnp.maximum(counts, 1.0)[:, None]


@functools.cache
def build_multi_vector_encoder(
    config: EncoderConfig,
    multi_vector_config: MultiVectorEncoderConfig,
    compute: ComputeConfig = ComputeConfig(),  # noqa: B008 (frozen)
) -> Network[MultiVectorEncoder]:
    """Returns a multi-vector encoder as pure functions over its parameters."""
    return Network(lambda rngs: MultiVectorEncoder(config, multi_vector_config, compute, rngs))
