"""From ids to vectors: word + position + token type, normalised."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.config import BertConfig, ComputeConfig, NormalInit, SinusoidalInit
from bert_jax.models.layers.dropout import DropoutSeed, dropout
from bert_jax.models.layers.embedding_lookup import embedding_lookup
from bert_jax.models.layers.linear import embedding, initializer, layer_norm


class Embeddings(nnx.Module):
    """The sum of three tables, then norm and dropout (Devlin et al. 2019, figure 2)."""

    def __init__(self, config: BertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.word_embeddings = embedding(config.vocab_size, config, rngs)
        self.position_embeddings = embedding(
            config.positions.max_position_embeddings, config, rngs, _position_init(config)
        )
        self.token_type_embeddings = embedding(config.type_vocab_size, config, rngs)
        self.norm = layer_norm(config, compute, rngs)
        self.max_position_embeddings = config.positions.max_position_embeddings
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        position_ids: jax.Array | None,
        dropout_seed: DropoutSeed | None,
    ) -> jax.Array:
        """int32 [B, L] ids -> [B, L, D].

        Raises:
          ConfigError: L is beyond the position table (XLA would clamp the index in silence).
        """
        length = input_ids.shape[1]
        if length > self.max_position_embeddings:
            raise ConfigError(
                f"sequence length {length} is beyond the position table "
                f"(model.positions.max_position_embeddings is {self.max_position_embeddings})"
            )
        position_table = self.position_embeddings.embedding[...]
        if position_ids is None:
            position_vectors = position_table[:length][None].astype(jnp.float32)
        else:
            position_vectors = embedding_lookup(position_table, position_ids)
        x_BLD = embedding_lookup(self.word_embeddings.embedding[...], input_ids) + position_vectors
        # A lookup in so small a table is a product: its gradient then needs no scatter.
        token_type_table = self.token_type_embeddings.embedding[...].astype(jnp.float32)
        x_BLD += jnp.dot(
            jax.nn.one_hot(token_type_ids, len(token_type_table), dtype=jnp.float32),
            token_type_table,
        )
        return dropout(self.norm(x_BLD), self.dropout_rate, dropout_seed)


def _position_init(config: BertConfig) -> nnx.Initializer:
    match config.positions.init:
        case NormalInit():
            return initializer(config)
        case SinusoidalInit():
            return _sinusoidal_init(config.initializer_range)


def _sinusoidal_init(stddev: float) -> nnx.Initializer:
    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = None, *_: Any) -> jax.Array:
        del key
        positions, width = shape
        frequencies = 10_000.0 ** (-jnp.arange(0, width, 2, dtype=dtype) / width)
        angles = jnp.arange(positions, dtype=dtype)[:, None] * frequencies
        waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(positions, -1)
        return waves[:, :width] * (stddev * 2.0**0.5)

    return init
