"""Computes input embeddings from token ids: word + position + token type, then norm and dropout."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.layers.config import (
    ComputeConfig,
    NormalInit,
    PaddingOffsetPositions,
    SinusoidalInit,
    TransformerConfig,
)
from bert_jax.models.layers.dropout import DropoutSeed, dropout
from bert_jax.models.layers.embedding_lookup import embedding_lookup
from bert_jax.models.layers.linear import embedding, initializer, layer_norm


class Embeddings(nnx.Module):
    """Sums three embeddings, then applies norm and dropout (Devlin et al. 2019, figure 2)."""

    def __init__(self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.word_embeddings = embedding(config.vocab_size, config, rngs)
        self.position_embeddings = embedding(
            config.positions.max_position_embeddings, config, rngs, _position_init(config)
        )
        self.token_type_embeddings = embedding(config.type_vocab_size, config, rngs)
        self.norm = layer_norm(config, compute)
        self.positions = config.positions
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        position_ids: jax.Array | None,
        dropout_seed: DropoutSeed | None,
    ) -> jax.Array:
        """Maps int32 [B, L] ids to [B, L, D].

        Raises:
          ConfigError: L is greater than the number of positions.
        """
        word_vectors = embedding_lookup(self.word_embeddings.embedding[...], input_ids)
        x_BLD = word_vectors + self._position_vectors(input_ids, position_ids)
        token_type_table = self.token_type_embeddings.embedding[...].astype(jnp.float32)
        if len(token_type_table) == 1:  # RoBERTa: one vector for all tokens, whatever their types
            x_BLD += token_type_table[0]
        else:
            # A lookup in so small a table is a matrix product, so its gradient needs no scatter.
            x_BLD += jnp.dot(
                jax.nn.one_hot(token_type_ids, len(token_type_table), dtype=jnp.float32),
                token_type_table,
            )
        return dropout(self.norm(x_BLD), self.dropout_rate, dropout_seed)

    def _position_vectors(self, input_ids: jax.Array, position_ids: jax.Array | None) -> jax.Array:
        """Returns the position embeddings, float32 [B, L, D] or [1, L, D]."""
        length = input_ids.shape[1]
        # Checked here because XLA clamps an index beyond the table without an error.
        if length > self.positions.max_length:
            raise ConfigError(
                f"sequence length {length} is beyond the position table, which has room for "
                f"{self.positions.max_length} tokens (model.positions.max_position_embeddings is "
                f"{self.positions.max_position_embeddings})"
            )
        table = self.position_embeddings.embedding[...]
        if isinstance(self.positions, PaddingOffsetPositions):
            return embedding_lookup(
                table, padding_offset_positions(input_ids, position_ids, self.positions)
            )
        if position_ids is None:
            return table[:length][None].astype(jnp.float32)
        return embedding_lookup(table, position_ids)


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


def _position_init(config: TransformerConfig) -> nnx.Initializer:
    match config.positions.init:
        case NormalInit():
            return initializer(config)
        case SinusoidalInit():
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
