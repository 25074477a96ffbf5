"""What stands on top of an encoder: pooler, masked-LM head, the linear layer of a task's head."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.config import BertConfig, ComputeConfig, TaskHead, num_outputs
from bert_jax.models.layers.linear import Linear, layer_norm, linear
from bert_jax.models.layers.matmul import dense
from bert_jax.models.layers.transformer_block import activate


class Pooler(nnx.Module):
    """tanh of a dense layer on the first token."""

    def __init__(self, config: BertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.dense = linear(config.hidden_size, config.hidden_size, config, compute, rngs)

    def __call__(self, hidden_BLD: jax.Array) -> jax.Array:
        """[B, L, D] -> [B, D]."""
        return jnp.tanh(self.dense(hidden_BLD[:, 0]))


class LMHead(nnx.Module):
    """Dense, activation, norm, then scores against a table of word vectors plus a bias.

    The table is BERT's own word embeddings, passed as an array at the call (a shared reference
    would be untied in silence); with `tie_word_embeddings` False the head owns one.
    """

    def __init__(self, config: BertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.transform = linear(config.hidden_size, config.hidden_size, config, compute, rngs)
        self.norm = layer_norm(config, compute, rngs)
        self.bias = nnx.Param(jnp.zeros((config.vocab_size,), jnp.float32))
        if not config.tie_word_embeddings:
            init = nnx.initializers.truncated_normal(config.initializer_range)
            shape = (config.vocab_size, config.hidden_size)
            self.decoder = nnx.Param(init(rngs.params(), shape, jnp.float32))
        self.tied = config.tie_word_embeddings
        self.activation = config.hidden_act

    def __call__(self, hidden: jax.Array, table_VD: jax.Array) -> jax.Array:
        """[..., D] and the word table [V, D] -> logits, float32 [..., V]."""
        hidden = self.norm(activate(self.transform(hidden), self.activation))
        table = table_VD if self.tied else self.decoder[...]
        return dense(hidden, table, self.bias[...], 1, hidden.dtype)


def head_linear(config: BertConfig, head: TaskHead, rngs: nnx.Rngs) -> Linear:
    """The linear layer of a task's head, [..., D] -> float32 [..., outputs].

    It computes in float32 whatever the encoder does: it costs nothing beside the encoder, and a
    regression's value in bfloat16 would have two digits.
    """
    return linear(config.hidden_size, num_outputs(head), config, ComputeConfig(), rngs)


def gather_positions(hidden_BLD: jax.Array, positions_BP: jax.Array) -> jax.Array:
    """The hidden states at the given positions of each row, [B, P, D]."""
    return jnp.take_along_axis(hidden_BLD, positions_BP[..., None], axis=1)
