"""Turns hidden states into vectors of texts: pooling, dense layers, normalization.

The parameters are the encoder's and "sentence_head/dense/<i>/{kernel,bias}", where i counts
the `Dense` modules.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.post_norm import activate
from bert_jax.models.model import Batch, EncoderWithHeads
from bert_jax.models.sentence_encoder.config import (
    Dense,
    Normalize,
    PoolingMode,
    SentenceEncoderConfig,
    SentenceModule,
)
from bert_jax.params.functional import Network


class VectorModules(nnx.Module):
    """Applies dense layers and normalization to vectors, in float32."""

    def __init__(self, modules: tuple[SentenceModule, ...], rngs: nnx.Rngs):
        """Initializes the dense layers like PyTorch, uniform within 1 / sqrt(inputs)."""
        self.modules = modules
        self.dense = nnx.List(
            nnx.Linear(
                module.in_features,
                module.out_features,
                use_bias=module.bias,
                precision=jax.lax.Precision.HIGHEST,  # TPUs must not round float32 operands here
                kernel_init=nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform"),
                rngs=rngs,
            )
            for module in modules
            if isinstance(module, Dense)
        )

    def apply_modules(self, vectors: jax.Array) -> jax.Array:
        """Maps vectors, float32 [..., D], to the output of the last module."""
        dense = iter(self.dense)
        for module in self.modules:
            match module:
                case Dense():
                    vectors = next(dense)(vectors)
                    if module.activation is not None:
                        vectors = activate(vectors, module.activation)
                case Normalize():
                    vectors = normalize(vectors)
        return vectors


class SentenceHead(VectorModules):
    """Computes vectors of texts from hidden states, in float32; its config is the encoder's.

    The embedding width E is `config.embedding_size(hidden_size)`.
    """

    def __init__(self, config: SentenceEncoderConfig, hidden_size: int, rngs: nnx.Rngs):
        """Initializes the dense layers.

        Args:
          hidden_size: D of the encoder.

        Raises:
          ConfigError: a dense layer does not fit the vector that it reads.
        """
        config.embedding_size(hidden_size)
        super().__init__(config.modules, rngs)
        self.config = config

    def __call__(
        self,
        hidden_BLD: jax.Array,
        attention_mask: jax.Array,
        prompt_lengths: jax.Array | None = None,
    ) -> jax.Array:
        """Maps hidden states [B, L, D] to vectors, float32 [B, E], without `truncate_dim`.

        Args:
          attention_mask: int32 [B, L], 1 = real token. Padding must be on the right.
          prompt_lengths: int32 [B], the number of tokens of the prompt at the start of each text,
            [CLS] included, which are left out of the pooling; None to pool all tokens. Callers
            give it if `config.include_prompt` is false.
        """
        vectors = jnp.concatenate(
            [
                pool(hidden_BLD, attention_mask, mode, prompt_lengths)
                for mode in self.config.pooling
            ],
            axis=-1,
        )
        return self.apply_modules(vectors)


class SentenceEncoder(EncoderWithHeads):
    """Runs an encoder and a `SentenceHead` on it, `embed`."""

    def __init__(
        self,
        config: EncoderConfig,
        sentence_config: SentenceEncoderConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        heads: tuple[str, ...] = (),
    ):
        """Initializes all parameters, with pretraining heads; errors as `SentenceHead`."""
        super().__init__(config, compute, rngs, heads=heads)
        self.sentence_head = SentenceHead(sentence_config, config.hidden_size, rngs)

    def embed(
        self,
        batch: Batch,
        prompt_lengths: jax.Array | None = None,
        dropout_key: jax.Array | None = None,
    ) -> jax.Array:
        """Computes the vectors of the texts in a batch, float32 [B, E], without `truncate_dim`.

        Args:
          batch: the encoder's fields, int32 [B, L].
          prompt_lengths: see `SentenceHead`.
          dropout_key: None to apply no dropout.
        """
        hidden_BLD = self.encode(batch, dropout_key).last_hidden_state
        return self.sentence_head(hidden_BLD, batch["attention_mask"], prompt_lengths)

    def embed_layers(self, batch: Batch, dropout_key: jax.Array | None = None) -> jax.Array:
        """Computes the vectors of all layers, float32 [B, N + 1, E], that of the last one last.

        The first is that of the input of the first layer. The arguments are those of `embed`.
        """
        states = self.encode(batch, dropout_key, output_hidden_states=True).hidden_states
        mask = batch["attention_mask"]
        return jnp.stack([self.sentence_head(state, mask) for state in states], axis=1)


@functools.cache
def build_sentence_encoder(
    config: EncoderConfig,
    sentence_config: SentenceEncoderConfig,
    compute: ComputeConfig = ComputeConfig(),  # noqa: B008 (frozen)
) -> Network[SentenceEncoder]:
    """Returns a sentence encoder as pure functions over its parameters."""
    return Network(lambda rngs: SentenceEncoder(config, sentence_config, compute, rngs))


def pool(
    hidden_BLD: jax.Array,
    attention_mask: jax.Array,
    mode: PoolingMode,
    prompt_lengths: jax.Array | None = None,
) -> jax.Array:
    """Pools the hidden states of real tokens, [B, L, D] -> float32 [B, D].

    Args:
      attention_mask: int32 [B, L], 1 = real token.
      prompt_lengths: int32 [B], the number of tokens at the start that are left out; None for 0.
    """
    hidden_BLD = hidden_BLD.astype(jnp.float32)
    positions_L = jnp.arange(hidden_BLD.shape[1])
    is_pooled_BL = attention_mask > 0
    if prompt_lengths is not None:
        is_pooled_BL &= positions_L >= prompt_lengths[:, None]
    mask = is_pooled_BL[..., None]
    count = jnp.maximum(jnp.sum(mask, axis=1).astype(jnp.float32), 1e-9)
    match mode:
        case "cls":
            if prompt_lengths is None:
                return hidden_BLD[:, 0]
            return _at(hidden_BLD, jnp.argmax(is_pooled_BL, axis=1))
        case "max":
            return jnp.max(jnp.where(mask, hidden_BLD, -jnp.inf), axis=1)
        case "mean":
            return jnp.sum(jnp.where(mask, hidden_BLD, 0.0), axis=1) / count
        case "mean_sqrt_len_tokens":
            return jnp.sum(jnp.where(mask, hidden_BLD, 0.0), axis=1) / jnp.sqrt(count)
        case "weightedmean":
            weights = jnp.where(mask, (positions_L + 1).astype(jnp.float32)[None, :, None], 0.0)
            total = jnp.sum(jnp.where(mask, hidden_BLD * weights, 0.0), axis=1)
            return total / jnp.maximum(jnp.sum(weights, axis=1), 1e-9)
        case "lasttoken":
            return _at(hidden_BLD, jnp.max(jnp.where(is_pooled_BL, positions_L, 0), axis=1))


def _at(hidden_BLD: jax.Array, positions_B: jax.Array) -> jax.Array:
    """Selects one hidden state of each text, [B, D]."""
    selected: Any = jnp.take_along_axis(hidden_BLD, positions_B[:, None, None], axis=1)
    return selected[:, 0]


def normalize(vectors: jax.Array) -> jax.Array:
    """Divides vectors [..., E] by their Euclidean norms; a norm below 1e-12 counts as 1e-12."""
    # The maximum is under the root, so that the gradient at a vector of zeros is not NaN.
    squares = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    return vectors / jnp.sqrt(jnp.maximum(squares, 1e-24))
