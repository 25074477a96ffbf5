"""From ids to vectors: word + position + token type, normalised."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.config import BertConfig, Compute, RandomStart, SinusoidalStart
from bert_jax.models.dropout import Seed, dropout
from bert_jax.models.linear import embedding, initializer, layer_norm
from bert_jax.models.lookup import lookup


class Embeddings(nnx.Module):
    """The sum of three tables, then norm and dropout (Devlin et al. 2019, figure 2)."""

    def __init__(self, config: BertConfig, compute: Compute, rngs: nnx.Rngs):
        self.word_embeddings = embedding(config.vocab_size, config, rngs)
        self.position_embeddings = embedding(
            config.positions.max_length, config, rngs, _position_init(config)
        )
        self.token_type_embeddings = embedding(config.type_vocab_size, config, rngs)
        self.norm = layer_norm(config, compute, rngs)
        self.max_length = config.positions.max_length
        self.rate = config.hidden_dropout

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        position_ids: jax.Array | None,
        seed: Seed | None,
    ) -> jax.Array:
        """int32 [B, L] ids -> [B, L, D].

        Raises:
          ConfigError: L is beyond the position table (XLA would clamp the index in silence).
        """
        length = input_ids.shape[1]
        if length > self.max_length:
            raise ConfigError(
                f"sequence length {length} is beyond the position table "
                f"(model.positions.max_length is {self.max_length})"
            )
        places = self.position_embeddings.embedding[...]
        if position_ids is None:
            positions = places[:length][None].astype(jnp.float32)
        else:
            positions = lookup(places, position_ids)
        x_BLD = lookup(self.word_embeddings.embedding[...], input_ids) + positions
        # A lookup in so small a table is a product: its gradient then needs no scatter.
        types = self.token_type_embeddings.embedding[...].astype(jnp.float32)
        x_BLD += jnp.dot(jax.nn.one_hot(token_type_ids, len(types), dtype=jnp.float32), types)
        return dropout(self.norm(x_BLD), self.rate, seed)


def _position_init(config: BertConfig) -> nnx.Initializer:
    match config.positions.start:
        case RandomStart():
            return initializer(config)
        case SinusoidalStart():
            return _sinusoids(config.initializer_range)


def _sinusoids(deviation: float) -> nnx.Initializer:
    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = None, *_: Any) -> jax.Array:
        del key
        positions, width = shape
        rates = 10_000.0 ** (-jnp.arange(0, width, 2, dtype=dtype) / width)
        angles = jnp.arange(positions, dtype=dtype)[:, None] * rates
        waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(positions, -1)
        return waves[:, :width] * (deviation * 2.0**0.5)

    return init
