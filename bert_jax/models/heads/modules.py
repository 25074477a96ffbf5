"""Defines the modules on top of an encoder: heads of pretraining, classifiers, window encoder.

`EncoderWithHeads` in `models/model.py` builds and calls them.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.batch import MAX_SPAN_TARGETS
from bert_jax.errors import ConfigError
from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.config import (
    SPAN_POSITION_EMBEDDING_SIZE,
    DenseClassifier,
    LinearClassifier,
    PoolerClassifier,
    Pooling,
    PredictionHeadClassifier,
    TaskHead,
    WindowEncoder,
    classifier_layers,
    num_outputs,
)
from bert_jax.models.layers.attention import make_attention_mask
from bert_jax.models.layers.config import Activation, ComputeConfig
from bert_jax.models.layers.dropout import dropout, make_dropout_seeds
from bert_jax.models.layers.linear import (
    Linear,
    embedding_lookup,
    initializer,
    layer_norm,
    linear,
    output_stddev,
)
from bert_jax.models.layers.matmul import dense_transposed
from bert_jax.models.layers.post_norm import NUM_DROPOUT_SITES, PostNormBlock, activate
from bert_jax.models.layers.stack import run_layers


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
        self.activation: Activation = config.masked_lm_activation

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Maps [..., D] to [..., D]."""
        return self.norm(activate(self.dense(hidden), self.activation))


class LMHead(nnx.Module):
    """Computes masked-LM logits: dense, activation, norm, product with the token embeddings, bias.

    The dense layer maps D to E, the width of the token embeddings. With `"shared"` the head
    has no dense layer and no norm; its input is the output of the prediction head. With
    `"none"` it has no bias either. With `"two_layers"` two dense layers map D to `masked_lm_size`
    and back, each with an activation, and nothing has a bias.
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
        self.has_transform = config.masked_lm_transform == "own"
        if self.has_transform:
            self.transform = linear(config.hidden_size, width, config, compute, rngs)
            self.norm = layer_norm(config, compute, width)
        self.has_two_layers = config.masked_lm_transform == "two_layers"
        if self.has_two_layers:
            inner = config.masked_lm_size
            self.linear1 = linear(width, inner, config, compute, rngs, use_bias=False)
            self.linear2 = linear(inner, width, config, compute, rngs, use_bias=False)
        self.has_bias = config.masked_lm_transform in ("own", "shared")
        if self.has_bias:
            self.bias = nnx.Param(jnp.zeros((config.vocab_size,), jnp.float32))
        if not config.tie_word_embeddings:
            init = nnx.initializers.truncated_normal(config.initializer_range)
            shape = (config.vocab_size, width)
            self.decoder = nnx.Param(init(rngs.params(), shape, jnp.float32))
        self.tied = config.tie_word_embeddings
        self.activation: Activation = config.masked_lm_activation

    def __call__(self, hidden: jax.Array, token_embeddings_VE: jax.Array) -> jax.Array:
        """Maps [..., D] and the encoder's token embeddings [V, E] to logits, float32 [..., V]."""
        if self.has_transform:
            hidden = self.norm(activate(self.transform(hidden), self.activation))
        if self.has_two_layers:
            hidden = activate(self.linear1(hidden), self.activation)
            hidden = activate(self.linear2(hidden), self.activation)
        table = token_embeddings_VE if self.tied else self.decoder[...]
        bias = self.bias[...] if self.has_bias else None
        return dense_transposed(hidden, table, bias, hidden.dtype)


class DenseClassifierModule(nnx.Module):
    """Classifies one vector of a sequence: dropout, dense, activation, dropout, linear.

    Its config is `DenseClassifier`. With `"late"`, the dense layer reads all tokens. The mean
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
        self.classifier = classifier
        self.pooling: Pooling = config.sequence_pooling

    def __call__(
        self,
        hidden_BLD: jax.Array,
        attention_mask: jax.Array,
        dropout_rate: float,
        dropout_key: jax.Array | None,
    ) -> jax.Array:
        """Maps hidden states [B, L, D] and an int32 mask [B, L] to logits, float32 [B, outputs]."""
        seeds = (None, None) if dropout_key is None else make_dropout_seeds(dropout_key, (2,))
        is_late = self.pooling == "late"
        x = hidden_BLD if is_late else pool_tokens(hidden_BLD, attention_mask, self.pooling)
        if self.classifier.input_dropout:
            x = dropout(x, dropout_rate, seeds[0])
        x = activate(self.dense(x), self.classifier.activation)
        if is_late:
            x = pool_tokens(x, attention_mask, self.pooling)
        return self.out_proj(dropout(x, dropout_rate, seeds[1]))


class FeedForwardSpanModule(nnx.Module):
    """Scores start and end of an answer: dropout, feed-forward, residual, norm, linear (BigBird).

    Its config is `"feed_forward"`.
    """

    def __init__(self, config: TransformerConfig, head: TaskHead, rngs: nnx.Rngs):
        width, compute = config.hidden_size, ComputeConfig()
        self.intermediate = linear(width, config.intermediate_size, config, compute, rngs)
        self.output = linear(config.intermediate_size, width, config, compute, rngs)
        self.norm = layer_norm(config, compute)
        self.out_proj = head_linear(config, head, rngs)
        self.activation: Activation = config.hidden_act

    def __call__(
        self, hidden_BLD: jax.Array, dropout_rate: float, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Maps hidden states [B, L, D] to scores of start and end, float32 [B, L, 2]."""
        seeds = (None, None) if dropout_key is None else make_dropout_seeds(dropout_key, (2,))
        hidden_BLD = hidden_BLD.astype(jnp.float32)
        x = self.intermediate(dropout(hidden_BLD, dropout_rate, seeds[0]))
        x = dropout(self.output(activate(x, self.activation)), dropout_rate, seeds[1])
        return self.out_proj(self.norm(x + hidden_BLD))


TaskModule = Linear | DenseClassifierModule | FeedForwardSpanModule
"""The module of a task head; a `Linear` reads the pooler, the prediction head, or all tokens."""


def build_task_module(config: TransformerConfig, head: TaskHead, rngs: nnx.Rngs) -> TaskModule:
    """Builds the module of a task head, without the parts that it shares with other heads."""
    if head.scope == "span" and config.span_classifier == "feed_forward":
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
        case "first_token":
            return hidden_BLD[:, 0]
        case "mean" | "late":
            weights = attention_mask[:, :, None].astype(jnp.float32)
            total = jnp.sum(hidden_BLD.astype(jnp.float32) * weights, axis=1)
            return (total / jnp.maximum(jnp.sum(weights, axis=1), 1.0)).astype(hidden_BLD.dtype)


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
    # Gathering by a product with one-hot vectors was no faster by the TPU compiler's estimate.
    return jnp.take_along_axis(hidden_BLD, positions_BP[..., None], axis=1)


class SpanBoundaryHead(nnx.Module):
    """Predicts the tokens of a masked span from the tokens before and after the span.

    The layers are those of `BertPairTargetPredictionHead` in SpanBERT's release: two layers of
    dense, activation and LayerNorm, the product with the encoder's token embeddings, and a bias.
    The second layer maps D to E, the width of the token embeddings, which is D in SpanBERT.
    Their input is [hidden state to the left; hidden state to the right; position embedding].
    """

    def __init__(self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        width, table_width = config.hidden_size, config.word_embedding_size
        self.position_embeddings = nnx.Embed(
            MAX_SPAN_TARGETS,
            SPAN_POSITION_EMBEDDING_SIZE,
            param_dtype=jnp.float32,
            embedding_init=initializer(config),
            rngs=rngs,
        )
        self.linear1 = linear(
            2 * width + SPAN_POSITION_EMBEDDING_SIZE, width, config, compute, rngs
        )
        self.layer_norm1 = layer_norm(config, compute)
        self.linear2 = linear(width, table_width, config, compute, rngs)
        self.layer_norm2 = layer_norm(config, compute, table_width)
        self.bias = nnx.Param(jnp.zeros((config.vocab_size,), jnp.float32))
        self.activation: Activation = config.hidden_act

    def __call__(
        self,
        left_BPD: jax.Array,
        right_BPD: jax.Array,
        offsets_BP: jax.Array,
        token_embeddings_VE: jax.Array,
    ) -> jax.Array:
        """Computes the logits of P tokens in each of B sequences.

        Args:
          left_BPD, right_BPD: hidden states next to the span of each token.
          offsets_BP: int32, the position of the token in its span, below `MAX_SPAN_TARGETS`.
          token_embeddings_VE: the token embeddings of the encoder.

        Returns:
          float32 [B, P, V].
        """
        positions = embedding_lookup(self.position_embeddings.embedding[...], offsets_BP)
        inputs = (left_BPD, right_BPD, positions.astype(left_BPD.dtype))
        hidden = activate(self.linear1(jnp.concatenate(inputs, axis=-1)), self.activation)
        hidden = activate(self.linear2(self.layer_norm1(hidden)), self.activation)
        hidden = self.layer_norm2(hidden)
        return dense_transposed(hidden, token_embeddings_VE, self.bias[...], hidden.dtype)


# One vector for each window goes in and one vector comes out, which the family's ordinary
# classifier reads: losses, labels, metrics and sharding are as for classification. The number of
# windows is fixed, which costs computation for short texts but compiles one step. Hugging Face has
# no such class, so the run folder is the model.
class WindowEncoderModule(nnx.Module):
    """Encodes the vectors of the windows of a text into one vector.

    Position embeddings are added to the vectors of the windows, and after a LayerNorm they pass
    through post-norm layers with the sizes of the encoder's (Pappagari et al. 2019). The result is
    the mean over the windows. Its config is `WindowEncoder`.
    """

    def __init__(
        self,
        config: TransformerConfig,
        window_encoder: WindowEncoder,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
    ):
        # A few windows need neither the fused kernel nor a scan over layers.
        self.compute = ComputeConfig(dtype=compute.dtype)
        self.position_embeddings = nnx.Embed(
            window_encoder.num_windows,
            config.hidden_size,
            param_dtype=jnp.float32,
            embedding_init=initializer(config),
            rngs=rngs,
        )
        self.norm = layer_norm(config, self.compute)
        self.layers = nnx.List(
            [PostNormBlock(config, self.compute, rngs) for _ in range(window_encoder.num_layers)]
        )

    def __call__(
        self, vectors: jax.Array, window_mask_BA: jax.Array, dropout_key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Maps one vector for each of A windows to one vector for each text.

        Args:
          vectors: [B x A, 1, D], what the head reads of each window.
          window_mask_BA: int32 [B, A], 1 = a window, 0 = padding, which has no effect.
          dropout_key: applies the dropouts of the layers; None for none.

        Returns:
          The vectors of the texts as sequences of one token, [B, 1, D], and their attention mask,
          ones [B, 1].
        """
        vectors_BAD = vectors.reshape(*window_mask_BA.shape, -1)
        positions = self.position_embeddings.embedding[...].astype(vectors.dtype)
        seeds = None
        if dropout_key is not None:
            # The classifier uses the key itself.
            dropout_key = jax.random.fold_in(dropout_key, 1)
            seeds = make_dropout_seeds(dropout_key, (len(self.layers), NUM_DROPOUT_SITES))
        encoded_BAD = run_layers(
            self.layers,
            self.compute,
            self.norm(vectors_BAD + positions),
            make_attention_mask(window_mask_BA, None, causal=False),
            seeds,
        ).last_hidden_state
        weights_BA1 = window_mask_BA[..., None].astype(jnp.float32)
        total_BD = jnp.sum(encoded_BAD.astype(jnp.float32) * weights_BA1, axis=1)
        mean_BD = (total_BD / jnp.sum(weights_BA1, axis=1)).astype(vectors.dtype)
        return mean_BD[:, None], jnp.ones_like(window_mask_BA[:, :1])


class ReplacedTokenHead(nnx.Module):
    """Computes whether each token was replaced: dense, activation, linear to one logit.

    Has the layers of Hugging Face's `ElectraDiscriminatorPredictions`. With `"first_token"`,
    the input of the dense layer is norm(first token + token), as in DeBERTa-v3's release.
    """

    def __init__(self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        detector = config.replaced_token_detector
        if detector is None:
            raise ConfigError(
                f"heads contains 'replaced_token', but {config.family} has no such head; expected "
                "ELECTRA or DeBERTa"
            )
        self.dense = linear(config.hidden_size, config.hidden_size, config, compute, rngs)
        self.output = linear(config.hidden_size, 1, config, ComputeConfig(), rngs)
        self.reads_first_token = detector == "first_token"
        if self.reads_first_token:
            self.norm = layer_norm(config, compute)
        self.activation: Activation = config.hidden_act

    def __call__(self, hidden_BLD: jax.Array, position_ids: jax.Array | None = None) -> jax.Array:
        """Maps [B, L, D] to logits, float32 [B, L]; positive means that the token was replaced.

        Args:
          position_ids: int32 [B, L], positions in each packed example; None if rows are not packed.
        """
        if self.reads_first_token:
            first = hidden_BLD[:, :1]
            if position_ids is not None:  # each packed example has its own first token
                columns = jnp.arange(position_ids.shape[1]) - position_ids
                first = gather_positions(hidden_BLD, columns)
            hidden_BLD = self.norm(first + hidden_BLD)
        return self.output(activate(self.dense(hidden_BLD), self.activation))[..., 0]
