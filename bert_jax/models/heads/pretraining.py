"""Defines the heads that pretraining trains, and computes their logits.

`PretrainingHeads` is the base class of `EncoderWithHeads`. To add the head of another objective,
write its module, add it to `_HEAD_MODULES` and give `PretrainingHeads` a method for its logits.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.config import TransformerConfig
from bert_jax.models.encoder import Encoder, EncoderConfig
from bert_jax.models.heads.config import LabelTokens, masked_lm_parts
from bert_jax.models.heads.modules import LMHead, Pooler, PredictionHead, gather_positions
from bert_jax.models.heads.pretraining_config import FirstTokenDetector
from bert_jax.models.heads.span_boundary import SpanBoundaryHead
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.linear import Linear, layer_norm, linear
from bert_jax.models.layers.transformer import activate


class ReplacedTokenHead(nnx.Module):
    """Computes whether each token was replaced: dense, activation, linear to one logit.

    Has the layers of Hugging Face's `ElectraDiscriminatorPredictions`. With `FirstTokenDetector`,
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
        self.reads_first_token = isinstance(detector, FirstTokenDetector)
        if self.reads_first_token:
            self.norm = layer_norm(config, compute)
        self.activation = config.hidden_act

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


def _pair_classifier(config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs) -> Linear:
    """Builds the layer that classifies a pair of segments from the output of the pooler."""
    return linear(config.hidden_size, 2, config, compute, rngs)


# Random initial values depend on this order.
_HEAD_MODULES: dict[str, Callable[[EncoderConfig, ComputeConfig, nnx.Rngs], nnx.Module]] = {
    "pooler": Pooler,
    "prediction_head": PredictionHead,
    "masked_lm": LMHead,
    "next_sentence": _pair_classifier,
    "sentence_order": _pair_classifier,
    "span_boundary": SpanBoundaryHead,
    "replaced_token": ReplacedTokenHead,
}

HEADS = tuple(_HEAD_MODULES)
"""Names of the heads that pretraining trains; a family or an objective has some of them."""


class PretrainingHeads(nnx.Module):
    """Holds an encoder and its pretraining heads, and computes the logits of each head.

    Attributes:
      encoder: an `Encoder`, which the subclass builds.
      pooler, prediction_head, masked_lm, next_sentence, sentence_order, span_boundary,
        replaced_token: exist if they were built.
    """

    config: EncoderConfig
    encoder: Encoder
    pooler: Pooler
    prediction_head: PredictionHead
    masked_lm: LMHead
    next_sentence: Linear
    sentence_order: Linear
    span_boundary: SpanBoundaryHead
    replaced_token: ReplacedTokenHead

    def build_heads(
        self,
        heads: tuple[str, ...],
        task_parts: tuple[str, ...],
        compute: ComputeConfig,
        rngs: nnx.Rngs,
    ) -> None:
        """Builds `heads`, and the ones that they or a task head use.

        Args:
          heads: a subset of `HEADS`.
          task_parts: the parts that the task head needs, as ("classifier", "pooler").

        Raises:
          ConfigError: a name in `heads` is unknown, a head that needs the pooler has none, or the
            family has no such head.
        """
        if unknown_heads := [name for name in heads if name not in HEADS]:
            raise ConfigError(
                f"heads contains {unknown_heads[0]!r}; expected names from {', '.join(HEADS)}"
            )
        for name in ("next_sentence", "sentence_order"):
            if name in heads and "pooler" not in (*heads, *task_parts):
                raise ConfigError(
                    f"heads is {heads}, but the head {name!r} uses the output of the pooler; "
                    "add 'pooler'"
                )
        shared_parts = masked_lm_parts(self.config) if "masked_lm" in heads else ()
        for name, build in _HEAD_MODULES.items():
            if name in (*heads, *shared_parts, *task_parts):
                setattr(self, name, build(self.config, compute, rngs))

    def masked_lm_logits(self, hidden: jax.Array) -> jax.Array:
        """Maps hidden states [..., D] to logits over the vocabulary, float32 [..., V]."""
        if "prediction_head" in masked_lm_parts(self.config):
            hidden = self.prediction_head(hidden)
        return self.masked_lm(hidden, self.encoder.token_embeddings())

    def label_logits(
        self, hidden_BLD: jax.Array, input_ids: jax.Array, label_tokens: LabelTokens
    ) -> jax.Array:
        """Maps hidden states [B, L, D] to the logits of classes at the first mask, float32 [B, C].

        Each class has the mean of the masked-LM logits of its label words; see `LabelTokens`.
        """
        positions = jnp.argmax(input_ids == label_tokens.mask_token_id, axis=1)
        logits_BV = self.masked_lm_logits(gather_positions(hidden_BLD, positions[:, None])[:, 0])
        return jnp.stack(
            [
                sum(jnp.mean(logits_BV[:, np.array(word)], axis=1) for word in words) / len(words)
                for words in label_tokens.token_ids
            ],
            axis=1,
        )

    def next_sentence_logits(self, hidden_BLD: jax.Array) -> jax.Array:
        """Maps hidden states [B, L, D] to logits of IsNext and NotNext, float32 [B, 2]."""
        return self.next_sentence(self.pooler(hidden_BLD)).astype(jnp.float32)

    def sentence_order_logits(self, hidden_BLD: jax.Array) -> jax.Array:
        """Maps hidden states [B, L, D] to logits of in order and swapped, float32 [B, 2]."""
        return self.sentence_order(self.pooler(hidden_BLD)).astype(jnp.float32)

    def span_boundary_logits(self, hidden_BLD: jax.Array, batch: Mapping[str, Any]) -> jax.Array:
        """Maps hidden states [B, L, D] to logits of the tokens of spans, float32 [B, P, V].

        Args:
          batch: has the fields `SPAN_BOUNDARY_FIELDS` of `bert_jax/batch.py`.
        """
        return self.span_boundary(
            gather_positions(hidden_BLD, batch["span_left_positions"]),
            gather_positions(hidden_BLD, batch["span_right_positions"]),
            batch["span_target_offsets"],
            self.encoder.token_embeddings(),
        )
