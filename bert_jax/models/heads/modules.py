"""Defines the modules on top of an encoder: pooler, masked-LM head and classifiers."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.config import (
    DenseClassifier,
    FeedForwardSpan,
    FirstTokenPooling,
    LatePooling,
    LinearClassifier,
    MeanPooling,
    PoolerClassifier,
    Pooling,
    PredictionHeadClassifier,
    TaskHead,
    classifier_layers,
    num_outputs,
)
from bert_jax.models.heads.pretraining_config import NoTransform, OwnTransform
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import dropout, make_dropout_seeds
from bert_jax.models.layers.linear import Linear, layer_norm, linear, output_stddev
from bert_jax.models.layers.matmul import dense_transposed
from bert_jax.models.layers.transformer import activate


class Pooler(nnx.Module):
    """Computes tanh of a dense layer on the first token."""

    def __init__(self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.dense = linear(config.hidden_size, config.hidden_size, config, compute, rngs)

    def __call__(self, hidden_BLD: jax.Array) -> jax.Array:
        """Maps [B, L, D] to [B, D]."""
        return jnp.tanh(self.dense(hidden_BLD[:, 0]))


# A part of its own, because masked LM and all task heads of ModernBERT use it: a task begins with
# the pretrained dense layer and norm, as in Hugging Face.
class PredictionHead(nnx.Module):
    """Computes dense without bias, activation and norm: the input of all heads (ModernBERT)."""

    def __init__(self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        width = config.hidden_size
        self.dense = linear(
            width, width, config, compute, rngs, use_bias=False, stddev=output_stddev(config)
        )
        self.norm = layer_norm(config, compute)
        self.activation = config.masked_lm_activation

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Maps [..., D] to [..., D]."""
        return self.norm(activate(self.dense(hidden), self.activation))


class LMHead(nnx.Module):
    """Computes masked-LM logits: dense, activation, norm, product with the token embeddings, bias.

    The dense layer maps D to E, the width of the token embeddings. With `SharedTransform` the head
    has no dense layer and no norm; its input is the output of the prediction head. With
    `NoTransform` it has no bias either.
    The encoder's table of token embeddings is an argument of the call, because a shared reference
    between modules would be untied without an error. With `tie_word_embeddings` False the head has
    its own table, `decoder`.
    """

    def __init__(
        self,
        config: TransformerConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
    ):
        width = config.word_embedding_size
        self.has_transform = isinstance(config.masked_lm_transform, OwnTransform)
        if self.has_transform:
            self.transform = linear(config.hidden_size, width, config, compute, rngs)
            self.norm = layer_norm(config, compute, width)
        self.has_bias = not isinstance(config.masked_lm_transform, NoTransform)
        if self.has_bias:
            self.bias = nnx.Param(jnp.zeros((config.vocab_size,), jnp.float32))
        if not config.tie_word_embeddings:
            init = nnx.initializers.truncated_normal(config.initializer_range)
            shape = (config.vocab_size, width)
            self.decoder = nnx.Param(init(rngs.params(), shape, jnp.float32))
        self.tied = config.tie_word_embeddings
        self.activation = config.masked_lm_activation

    def __call__(self, hidden: jax.Array, token_embeddings_VE: jax.Array) -> jax.Array:
        """Maps [..., D] and the encoder's token embeddings [V, E] to logits, float32 [..., V]."""
        if self.has_transform:
            hidden = self.norm(activate(self.transform(hidden), self.activation))
        table = token_embeddings_VE if self.tied else self.decoder[...]
        bias = self.bias[...] if self.has_bias else None
        return dense_transposed(hidden, table, bias, hidden.dtype)


class DenseClassifierModule(nnx.Module):
    """Classifies one vector of a sequence: dropout, dense, activation, dropout, linear.

    Its config is `DenseClassifier`. With `LatePooling`, the dense layer reads all tokens. The mean
    of their logits is computed as the logits of the mean, because the last layer is linear.
    """

    def __init__(
        self,
        config: TransformerConfig,
        classifier: DenseClassifier,
        head: TaskHead,
        rngs: nnx.Rngs,
    ):
        self.dense = linear(config.hidden_size, config.hidden_size, config, ComputeConfig(), rngs)
        self.out_proj = head_linear(config, head, rngs)
        self.classifier, self.pooling = classifier, config.sequence_pooling

    def __call__(
        self,
        hidden_BLD: jax.Array,
        attention_mask: jax.Array,
        dropout_rate: float,
        dropout_key: jax.Array | None,
    ) -> jax.Array:
        """Maps hidden states [B, L, D] and an int32 mask [B, L] to logits, float32 [B, outputs]."""
        seeds = (None, None) if dropout_key is None else make_dropout_seeds(dropout_key, (2,))
        is_late = isinstance(self.pooling, LatePooling)
        x = hidden_BLD if is_late else pool_tokens(hidden_BLD, attention_mask, self.pooling)
        if self.classifier.input_dropout:
            x = dropout(x, dropout_rate, seeds[0])
        x = activate(self.dense(x), self.classifier.activation)
        if is_late:
            x = pool_tokens(x, attention_mask, self.pooling)
        return self.out_proj(dropout(x, dropout_rate, seeds[1]))


def build_task_module(config: TransformerConfig, head: TaskHead, rngs: nnx.Rngs) -> nnx.Module:
    """Builds the module of a task head, without the parts that it shares with other heads."""
    if head.scope == "span" and config.span_classifier == FeedForwardSpan():
        return FeedForwardSpanModule(config, head, rngs)
    match classifier_layers(head, config):
        case DenseClassifier() as classifier:
            return DenseClassifierModule(config, classifier, head, rngs)
        case PredictionHeadClassifier():
            return head_linear(config, head, rngs, stddev=config.hidden_size**-0.5)
        case PoolerClassifier() | LinearClassifier():
            # `task_logits` feeds this layer the output of the pooler, or all tokens.
            return head_linear(config, head, rngs)


def pool_tokens(hidden_BLD: jax.Array, attention_mask: jax.Array, pooling: Pooling) -> jax.Array:
    """Returns one vector for each sequence, [B, D], from the hidden states of its tokens."""
    match pooling:
        case FirstTokenPooling():
            return hidden_BLD[:, 0]
        case MeanPooling() | LatePooling():
            weights = attention_mask[:, :, None].astype(jnp.float32)
            total = jnp.sum(hidden_BLD.astype(jnp.float32) * weights, axis=1)
            return (total / jnp.maximum(jnp.sum(weights, axis=1), 1.0)).astype(hidden_BLD.dtype)


class FeedForwardSpanModule(nnx.Module):
    """Scores start and end of an answer: dropout, feed-forward, residual, norm, linear (BigBird).

    Its config is `FeedForwardSpan`.
    """

    def __init__(self, config: TransformerConfig, head: TaskHead, rngs: nnx.Rngs):
        width, compute = config.hidden_size, ComputeConfig()
        self.intermediate = linear(width, config.intermediate_size, config, compute, rngs)
        self.output = linear(config.intermediate_size, width, config, compute, rngs)
        self.norm = layer_norm(config, compute)
        self.out_proj = head_linear(config, head, rngs)
        self.activation = config.hidden_act

    def __call__(
        self, hidden_BLD: jax.Array, dropout_rate: float, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Maps hidden states [B, L, D] to scores of start and end, float32 [B, L, 2]."""
        seeds = (None, None) if dropout_key is None else make_dropout_seeds(dropout_key, (2,))
        hidden_BLD = hidden_BLD.astype(jnp.float32)
        x = self.intermediate(dropout(hidden_BLD, dropout_rate, seeds[0]))
        x = dropout(self.output(activate(x, self.activation)), dropout_rate, seeds[1])
        return self.out_proj(self.norm(x + hidden_BLD))


def head_linear(
    config: TransformerConfig, head: TaskHead, rngs: nnx.Rngs, *, stddev: float | None = None
) -> Linear:
    """Builds the last linear layer of a task head, [..., D] -> float32 [..., outputs].

    It computes in float32 whatever the dtype of the encoder is: its cost is negligible, and the
    value of a regression would have only two digits in bfloat16.
    """
    return linear(
        config.hidden_size, num_outputs(head), config, ComputeConfig(), rngs, stddev=stddev
    )


def gather_positions(hidden_BLD: jax.Array, positions_BP: jax.Array) -> jax.Array:
    """Returns the hidden states at the given positions of each sequence, [B, P, D]."""
    return jnp.take_along_axis(hidden_BLD, positions_BP[..., None], axis=1)
