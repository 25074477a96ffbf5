"""Computes input embeddings from token ids: word + position + token type, norm and dropout.

The position and token-type embeddings are absent in families that have none.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.config import (
    ComputeConfig,
    NoPositions,
    PaddingOffsetPositions,
    PositionInit,
)
from bert_jax.models.layers.dropout import DropoutSeed, dropout
from bert_jax.models.layers.linear import embedding, embedding_lookup, initializer, layer_norm


class Embeddings(nnx.Module):
    """Sums the embeddings, then applies norm and dropout (Devlin et al. 2019, figure 2).

    Attributes:
      position_embeddings: absent with `NoPositions`.
      token_type_embeddings: absent if `type_vocab_size` is 0.
      norm: absent if `has_norm` is False.
    """

    def __init__(
        self,
        config: TransformerConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        *,
        has_norm: bool = True,
    ):
        self.word_embeddings = embedding(config.vocab_size, config, rngs)
        if not isinstance(config.positions, NoPositions):
            init = _position_init(config.positions.init, config)
            self.position_embeddings = embedding(
                config.positions.max_position_embeddings, config, rngs, init
            )
        if config.type_vocab_size:
            self.token_type_embeddings = embedding(config.type_vocab_size, config, rngs)
        if has_norm:
            self.norm = layer_norm(config, compute, config.word_embedding_size)
        self.has_norm, self.dtype = has_norm, jnp.dtype(compute.dtype)
        self.type_vocab_size = config.type_vocab_size
        self.positions = config.positions
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        position_ids: jax.Array | None,
        dropout_seed: DropoutSeed | None,
    ) -> jax.Array:
        """Maps int32 [B, L] ids to [B, L, E], normalized and with dropout."""
        x_BLE = self.sum_embeddings(input_ids, token_type_ids, position_ids)
        x_BLE = self.norm(x_BLE) if self.has_norm else x_BLE.astype(self.dtype)
        return dropout(x_BLE, self.dropout_rate, dropout_seed)

    def sum_embeddings(
        self, input_ids: jax.Array, token_type_ids: jax.Array, position_ids: jax.Array | None
    ) -> jax.Array:
        """Returns the sum of the embeddings, float32 [B, L, E].

        Raises:
          ConfigError: L is greater than the number of positions.
        """
        length = input_ids.shape[1]
        # Checked here because XLA clamps an index beyond the table without an error.
        if length > self.positions.max_length:
            raise ConfigError(
                f"sequence length {length} is beyond the position table, which has room for "
                f"{self.positions.max_length} tokens (model.positions.max_position_embeddings is "
                f"{self.positions.max_position_embeddings})"
            )
        x_BLE = self.word_embeddings(input_ids)
        if not isinstance(self.positions, NoPositions):
            x_BLE += self._position_vectors(input_ids, position_ids)
        if self.type_vocab_size:
            x_BLE += self._token_type_vectors(token_type_ids)
        return x_BLE

    def _token_type_vectors(self, token_type_ids: jax.Array) -> jax.Array:
        """Returns the token-type embeddings, float32 [B, L, E] or [E]."""
        table = self.token_type_embeddings.embedding[...].astype(jnp.float32)
        if len(table) == 1:  # RoBERTa: one vector for all tokens, whatever their types
            return table[0]
        # A lookup in so small a table is a matrix product, so its gradient needs no scatter.
        return jnp.dot(jax.nn.one_hot(token_type_ids, len(table), dtype=jnp.float32), table)

    def _position_vectors(self, input_ids: jax.Array, position_ids: jax.Array | None) -> jax.Array:
        """Returns the position embeddings, float32 [B, L, E] or [1, L, E]."""
        length = input_ids.shape[1]
        table = self.position_embeddings.embedding[...]
        if isinstance(self.positions, PaddingOffsetPositions):
            return embedding_lookup(
                table, padding_offset_positions(input_ids, position_ids, self.positions)
            )
        if position_ids is None:
            return table[:length][None].astype(jnp.float32)
        return embedding_lookup(table, position_ids)


class GivenEmbeddings(nnx.Module):
    """Takes the place of the word embeddings of an encoder, to differentiate by their values.

    Attributes:
      vectors: what is returned for any ids, float32 [B, L, E].
      embedding: the table, which heads read.
    """

    def __init__(self, vectors_BLE: jax.Array, embedding: nnx.Param[jax.Array]):
        self.vectors, self.embedding = nnx.data(vectors_BLE), embedding

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Returns the vectors."""
        del ids  # other parts of the encoder read positions from them
        return self.vectors


def padding_offset_positions(
    input_ids: jax.Array, position_ids: jax.Array | None, positions: PaddingOffsetPositions
) -> jax.Array:
    """Returns RoBERTa's rows of the position table, int32 [B, L].

    The first token that is not padding has row `pad_token_id` + 1, the next one the row after it;
    padding has row `pad_token_id` (`create_position_ids_from_input_ids` of Hugging Face). Padding
    is recognized by its id, not by the attention mask. `position_ids`, which count from 0 within
    each packed example, replace the count.
    """
    is_real = input_ids != positions.pad_token_id
    if position_ids is None:
        position_ids = jnp.cumsum(is_real.astype(jnp.int32), axis=1) - 1
    return jnp.where(is_real, position_ids + positions.offset, positions.pad_token_id)


def _position_init(init: PositionInit, config: TransformerConfig) -> nnx.Initializer:
    match init:
        case "normal":
            return initializer(config)
        case "sinusoidal":
            return _sinusoidal_init(config.initializer_range)


def _sinusoidal_init(stddev: float) -> nnx.Initializer:
    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = None, *_: Any) -> jax.Array:
        del key  # nothing here is random
        positions, width = shape
        frequencies = 10_000.0 ** (-jnp.arange(0, width, 2, dtype=dtype) / width)
        angles = jnp.arange(positions, dtype=dtype)[:, None] * frequencies
        waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(positions, -1)
        return waves[:, :width] * (stddev * 2.0**0.5)  # sin and cos have variance 1/2

    return init
