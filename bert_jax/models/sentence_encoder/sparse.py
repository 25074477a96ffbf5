"""Computes sparse vectors of texts: a weight for each token of the vocabulary (SPLADE).

The parameters are the encoder's, those of its masked-LM head, and with static queries
"sentence_head/query_weights" [V].
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.model import Batch, EncoderWithHeads
from bert_jax.models.sentence_encoder.config import SparseActivation, SparseEncoderConfig
from bert_jax.params.functional import Network

# The logits of all positions, [B, L, V], would be the largest array of a step by far.
POSITIONS_PER_CHUNK = 16
"""Positions whose masked-LM logits exist at once."""


class StaticQueryWeights(nnx.Module):
    """Holds a weight for each token, which a query with the token has; initially 1."""

    def __init__(self, vocab_size: int):
        self.query_weights = nnx.Param(jnp.ones(vocab_size, jnp.float32))

    def __call__(self, batch: Batch) -> jax.Array:
        """Maps token ids [B, L] to the weights of the tokens that occur, float32 [B, V]."""
        ids, mask = batch["input_ids"], batch["attention_mask"]
        rows = jnp.arange(ids.shape[0])[:, None]
        absent = jnp.zeros((ids.shape[0], len(self.query_weights[...])), jnp.float32)
        occurs = absent.at[rows, ids].max(mask.astype(jnp.float32))
        return occurs * self.query_weights[...]


class SparseEncoder(EncoderWithHeads):
    """Runs an encoder and its masked-LM head, and pools the saturated logits."""

    def __init__(
        self,
        config: EncoderConfig,
        sparse_config: SparseEncoderConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
    ):
        """Initializes all parameters."""
        super().__init__(config, compute, rngs, heads=("masked_lm",))
        self.sparse_config = sparse_config
        if sparse_config.has_static_queries:
            self.sentence_head = StaticQueryWeights(config.vocab_size)

    def embed(self, batch: Batch, dropout_key: jax.Array | None = None) -> jax.Array:
        """Computes the sparse vectors of the texts in a batch, float32 [B, V].

        `max_active_dims` is not applied.

        Args:
          batch: the encoder's fields, int32 [B, L].
          dropout_key: None to apply no dropout.
        """
        hidden_BLD = self.encode(batch, dropout_key).last_hidden_state
        mask_BL = batch["attention_mask"]
        padding = -hidden_BLD.shape[1] % POSITIONS_PER_CHUNK
        hidden_BLD = jnp.pad(hidden_BLD, ((0, 0), (0, padding), (0, 0)))
        mask_BL = jnp.pad(mask_BL, ((0, 0), (0, padding)))
        # Chunks of positions and not of texts, so that every device keeps its own texts. The
        # backward pass computes the logits again.
        pool = jax.checkpoint(self._pool, prevent_cse=False)
        chunks = jax.lax.map(lambda inputs: pool(*inputs), (_chunks(hidden_BLD), _chunks(mask_BL)))
        if self.sparse_config.pooling == "max":
            return jnp.max(chunks, axis=0)
        return jnp.sum(chunks, axis=0)

    def static_queries(self, batch: Batch) -> jax.Array:
        """Computes the vectors of queries without the encoder, float32 [B, V].

        Args:
          batch: "input_ids" without special tokens and "attention_mask", int32 [B, L].
        """
        return self.sentence_head(batch)

    def _pool(self, hidden_BLD: jax.Array, mask_BL: jax.Array) -> jax.Array:
        logits = self.masked_lm_logits(hidden_BLD).astype(jnp.float32)
        weights = saturate(logits, self.sparse_config.activation)
        # All weights are at least 0, so padding never is the maximum of a text.
        weights = jnp.where(mask_BL[..., None] > 0, weights, 0.0)
        if self.sparse_config.pooling == "max":
            return jnp.max(weights, axis=1)
        return jnp.sum(weights, axis=1)


def saturate(logits: jax.Array, activation: SparseActivation) -> jax.Array:
    """Computes log(1 + relu(x)), or with "log1p_relu" the log(1 + x) of that."""
    weights = jnp.log1p(jax.nn.relu(logits))
    return jnp.log1p(weights) if activation == "log1p_relu" else weights


def _chunks(values: jax.Array) -> jax.Array:
    """Splits positions into chunks: [B, L, ...] to [chunks, B, positions, ...]."""
    shape = values.shape[0], -1, POSITIONS_PER_CHUNK, *values.shape[2:]
    return jnp.swapaxes(values.reshape(shape), 0, 1)


@functools.cache
def build_sparse_encoder(
    config: EncoderConfig,
    sparse_config: SparseEncoderConfig,
    compute: ComputeConfig = ComputeConfig(),  # noqa: B008 (frozen)
) -> Network[SparseEncoder]:
    """Returns a sparse encoder as pure functions over its parameters."""
    return Network(lambda rngs: SparseEncoder(config, sparse_config, compute, rngs))
