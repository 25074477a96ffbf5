"""Defines the modules on top of an encoder: pooler, masked-LM head and classifiers."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.heads.config import TaskHead, num_outputs
from bert_jax.models.layers.config import Activation, ComputeConfig, TransformerConfig
from bert_jax.models.layers.dropout import dropout, make_dropout_seeds
from bert_jax.models.layers.linear import Linear, layer_norm, linear
from bert_jax.models.layers.matmul import dense_transposed
from bert_jax.models.layers.transformer import activate


class Pooler(nnx.Module):
    """Computes tanh of a dense layer on the first token."""

    def __init__(self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.dense = linear(config.hidden_size, config.hidden_size, config, compute, rngs)

    def __call__(self, hidden_BLD: jax.Array) -> jax.Array:
        """Maps [B, L, D] to [B, D]."""
        return jnp.tanh(self.dense(hidden_BLD[:, 0]))


class LMHead(nnx.Module):
    """Computes masked-LM logits: dense, activation, norm, product with the token embeddings, bias.

    The encoder's table of token embeddings is an argument of the call, because a shared reference
    between modules would be untied without an error. With `tie_word_embeddings` False the head has
    its own table, `decoder`.
    """

    def __init__(
        self,
        config: TransformerConfig,
        activation: Activation,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
    ):
        self.transform = linear(config.hidden_size, config.hidden_size, config, compute, rngs)
        self.norm = layer_norm(config, compute)
        self.bias = nnx.Param(jnp.zeros((config.vocab_size,), jnp.float32))
        if not config.tie_word_embeddings:
            init = nnx.initializers.truncated_normal(config.initializer_range)
            shape = (config.vocab_size, config.hidden_size)
            self.decoder = nnx.Param(init(rngs.params(), shape, jnp.float32))
        self.tied = config.tie_word_embeddings
        self.activation = activation

    def __call__(self, hidden: jax.Array, token_embeddings_VD: jax.Array) -> jax.Array:
        """Maps [..., D] and the encoder's token embeddings [V, D] to logits, float32 [..., V]."""
        hidden = self.norm(activate(self.transform(hidden), self.activation))
        table = token_embeddings_VD if self.tied else self.decoder[...]
        return dense_transposed(hidden, table, self.bias[...], hidden.dtype)


class DenseTanhClassifier(nnx.Module):
    """Classifies the first token as RoBERTa does: dropout, dense, tanh, dropout, linear.

    Has the layers of Hugging Face's `RobertaClassificationHead`; its config is `DenseClassifier`.
    """

    def __init__(self, config: TransformerConfig, head: TaskHead, rngs: nnx.Rngs):
        self.dense = linear(config.hidden_size, config.hidden_size, config, ComputeConfig(), rngs)
        self.out_proj = head_linear(config, head, rngs)

    def __call__(
        self, first_BD: jax.Array, dropout_rate: float, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Maps the hidden states of first tokens [B, D] to logits, float32 [B, outputs]."""
        seeds = (None, None) if dropout_key is None else make_dropout_seeds(dropout_key, (2,))
        hidden = jnp.tanh(self.dense(dropout(first_BD, dropout_rate, seeds[0])))
        return self.out_proj(dropout(hidden, dropout_rate, seeds[1]))


def head_linear(config: TransformerConfig, head: TaskHead, rngs: nnx.Rngs) -> Linear:
    """Builds the last linear layer of a task head, [..., D] -> float32 [..., outputs].

    It computes in float32 whatever the dtype of the encoder is: its cost is negligible, and the
    value of a regression would have only two digits in bfloat16.
    """
    return linear(config.hidden_size, num_outputs(head), config, ComputeConfig(), rngs)


def gather_positions(hidden_BLD: jax.Array, positions_BP: jax.Array) -> jax.Array:
    """Returns the hidden states at the given positions of each sequence, [B, P, D]."""
    return jnp.take_along_axis(hidden_BLD, positions_BP[..., None], axis=1)
