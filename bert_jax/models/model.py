"""Combines an encoder with heads: the forward pass that training, prediction and analysis share.

`EncoderWithHeads` is an ordinary `nnx.Module` and can be used directly. Training and prediction use
`build_network`, which returns the same module as pure functions over a nested dict of parameters:

    {"encoder": {...}, "pooler": {...}, "masked_lm": {...}, "next_sentence": {...},
     "sentence_order": {...}, "span_boundary": {...}, "classifier" or "span": {...}}
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.batch import PACKED_TOKENS, encoder_inputs
from bert_jax.errors import ConfigError
from bert_jax.models.bert.model import Pooler
from bert_jax.models.encoder import Encoder, EncoderConfig, EncoderDecoderConfig, EncoderOutput
from bert_jax.models.families import build_encoder, build_encoder_decoder
from bert_jax.models.heads.config import (
    HEADS,
    LabelTokens,
    PredictionHeadClassifier,
    TaskHead,
    classifier_layers,
    label_tokens_of,
    masked_lm_parts,
    reads_one_vector,
    task_parts,
    window_encoder_of,
)
from bert_jax.models.heads.modules import (
    DenseClassifierModule,
    FeedForwardSpanModule,
    LMHead,
    PredictionHead,
    ReplacedTokenHead,
    SpanBoundaryHead,
    TaskModule,
    WindowEncoderModule,
    build_task_module,
    gather_positions,
    pool_tokens,
)
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import dropout, make_dropout_seeds
from bert_jax.models.layers.linear import Linear, linear
from bert_jax.models.layers.stack import TokenSelection
from bert_jax.models.longformer.attention import global_attention_mask
from bert_jax.models.packing import pack_texts, unpack_texts
from bert_jax.models.seq2seq.network import EncoderDecoder
from bert_jax.params.functional import Network

Batch = Mapping[str, Any]


class EncoderWithHeads(nnx.Module):
    """Runs an encoder and the heads on it.

    To add the head of another objective, write its module, add its name to `HEADS`, build it in
    `__init__` and add a method for its logits.

    Attributes:
      encoder: an `Encoder`.
      pooler, prediction_head, masked_lm, next_sentence, sentence_order, span_boundary,
        replaced_token: the pretraining heads; each exists if it was built.
      window_encoder: exists if the task head has a `WindowEncoder`.
      classifier, span: the module of the task head, if there is one; `span` answers questions.
    """

    encoder: Encoder
    pooler: Pooler
    prediction_head: PredictionHead
    masked_lm: LMHead
    next_sentence: Linear
    sentence_order: Linear
    span_boundary: SpanBoundaryHead
    replaced_token: ReplacedTokenHead
    window_encoder: WindowEncoderModule
    classifier: TaskModule
    span: TaskModule

    def __init__(
        self,
        config: EncoderConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        *,
        heads: tuple[str, ...] = (),
        task_head: TaskHead | None = None,
    ):
        """Initializes all parameters.

        Args:
          heads: the pretraining heads to build, a subset of `HEADS`; those that they or the task
            head use are built, too.
          task_head: the head of a fine-tuning task, if any.

        Raises:
          ConfigError: a name in `heads` is unknown, a head that needs the pooler has none, or the
            family has no such head.
        """
        self.config, self.compute, self.heads, self.task_head = config, compute, heads, task_head
        self.global_tokens = config.global_tokens(task_head)
        task_part_names = task_parts(task_head, config) if task_head is not None else ()
        self.needs_pooler = "pooler" in task_part_names
        shared_parts = masked_lm_parts(config) if "masked_lm" in heads else ()
        parts = {*heads, *shared_parts, *task_part_names}
        _check_heads(heads, parts)
        if config.is_decoder and task_head is not None:
            raise ConfigError(
                f"the model is a {config.family}, which has no task heads; expected an encoder"
            )
        self.encoder = build_encoder(config, compute, rngs)
        # Random initial values depend on this order.
        if "pooler" in parts:
            self.pooler = Pooler(config, compute, rngs)
        if "prediction_head" in parts:
            self.prediction_head = PredictionHead(config, compute, rngs)
        if "masked_lm" in parts:
            self.masked_lm = LMHead(config, compute, rngs)
        if "next_sentence" in parts:
            self.next_sentence = linear(config.hidden_size, 2, config, compute, rngs)
        if "sentence_order" in parts:
            self.sentence_order = linear(config.hidden_size, 2, config, compute, rngs)
        if "span_boundary" in parts:
            self.span_boundary = SpanBoundaryHead(config, compute, rngs)
        if "replaced_token" in parts:
            self.replaced_token = ReplacedTokenHead(config, compute, rngs)
        if task_head is None:
            return
        if (windows := window_encoder_of(task_head)) is not None:
            self.window_encoder = WindowEncoderModule(config, windows, compute, rngs)
        if task_head.scope == "span":
            self.span = build_task_module(config, task_head, rngs)
        elif label_tokens_of(task_head) is None:
            self.classifier = build_task_module(config, task_head, rngs)

    def __call__(self, batch: Batch) -> dict[str, Any]:
        """Computes the hidden states and the logits of all heads for a batch, without dropout.

        The head `span_boundary` is left out, because it predicts masked spans only.

        Returns:
          A dict with the key "hidden_states" and one key for each head:

          hidden_states    num_hidden_layers + 1 arrays [B, L, D], in the compute dtype
          masked_lm        float32 [B, L, V]
          pooled           [B, D], in the compute dtype; only if "pooler" is in `heads`
          next_sentence    float32 [B, 2]
          sentence_order   float32 [B, 2]
          replaced_token   float32 [B, L]; positive where a token seems to have been replaced
          task             float32 [B, C] for classes, [B, 1] for regression, [B, L, C] for token
                           labels, [B, L, 2] for answer spans (start, end), [B x A, 1] for choices

          With choices, B is B x A in the other shapes, too.
        """
        hidden_states = self.encode(batch, output_hidden_states=True).hidden_states
        last = hidden_states[-1]
        outputs: dict[str, Any] = {"hidden_states": hidden_states}
        if "masked_lm" in self.heads:
            outputs["masked_lm"] = self.masked_lm_logits(last)
        if "pooler" in self.heads:
            outputs["pooled"] = self.pooler(last)
        if "next_sentence" in self.heads:
            outputs["next_sentence"] = self.next_sentence_logits(last)
        if "sentence_order" in self.heads:
            outputs["sentence_order"] = self.sentence_order_logits(last)
        if "replaced_token" in self.heads:
            outputs["replaced_token"] = self.replaced_token(last, batch.get("position_ids"))
        if self.task_head is not None:
            inputs = encoder_inputs(batch)
            outputs["task"] = self.task_logits(
                last,
                inputs["attention_mask"],
                window_mask=batch.get("window_mask"),
                input_ids=inputs["input_ids"],
            )
        return outputs

    def encode(
        self,
        batch: Batch,
        dropout_key: jax.Array | None = None,
        *,
        causal: bool | jax.Array = False,
        selection: TokenSelection | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Runs the encoder on a batch; choices [B, A, L] are encoded as [B x A, L].

        With the field `packed_tokens` they are encoded in the rows that it describes, and the
        output is that of the texts. The other arguments are as for `Encoder.__call__`.
        """
        inputs = encoder_inputs(batch)
        text_shape, packed_tokens = inputs["input_ids"].shape, batch.get(PACKED_TOKENS)
        if packed_tokens is not None:
            inputs = pack_texts(inputs, packed_tokens)
        if selection is not None:
            inputs["selection"] = selection
        if self.global_tokens is not None:
            inputs["global_attention_mask"] = global_attention_mask(
                self.global_tokens, inputs["input_ids"], inputs.get("position_ids")
            )
        output = self.encoder(
            **inputs,
            causal=causal,
            dropout_key=dropout_key,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        return output if packed_tokens is None else unpack_texts(output, packed_tokens, text_shape)

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
        # A mask that is written in a text is read as unknown, so the first mask is the
        # template's.
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

    def task_logits(
        self,
        hidden_BLD: jax.Array,
        attention_mask: jax.Array,
        dropout_rate: float = 0.0,
        dropout_key: jax.Array | None = None,
        window_mask: jax.Array | None = None,
        input_ids: jax.Array | None = None,
    ) -> jax.Array:
        """Maps hidden states [B, L, D] to float32 logits [B, outputs], or [B, L, outputs] by token.

        `attention_mask` is int32 [B, L], 1 = real token. A head that `reads_one_vector` accepts the
        result of `sequence_vectors` as well. `window_mask` is int32 [B, A], 1 = a window, for a
        head with a `WindowEncoder`, whose hidden states cover all windows, [B x A, L, D].
        `input_ids` is int32 [B, L], for a head with `LabelTokens`, which reads the mask only.
        """
        head = self.task_head
        assert head is not None, "this model was built without a task head"
        if (label_tokens := label_tokens_of(head)) is not None:
            assert input_ids is not None, "the mask cannot be found without input_ids"
            return self.label_logits(hidden_BLD, input_ids, label_tokens)
        if window_mask is not None:
            vectors = self.sequence_vectors(hidden_BLD, attention_mask)
            hidden_BLD, attention_mask = self.window_encoder(vectors, window_mask, dropout_key)
        module = self.span if head.scope == "span" else self.classifier
        if isinstance(module, DenseClassifierModule):
            return module(hidden_BLD, attention_mask, dropout_rate, dropout_key)
        if isinstance(module, FeedForwardSpanModule):
            return module(hidden_BLD, dropout_rate, dropout_key)
        # BERT's release has no dropout between the encoder and the question-answering head.
        has_dropout = head.scope != "span"
        inputs = self.pooler(hidden_BLD) if self.needs_pooler else hidden_BLD
        if reads_one_vector(head) and not self.needs_pooler:
            inputs = self.sequence_vectors(hidden_BLD, attention_mask)[:, 0]
        if isinstance(classifier_layers(head, self.config), PredictionHeadClassifier):
            inputs, has_dropout = self.prediction_head(inputs), True
        if dropout_key is not None and has_dropout:
            inputs = dropout(inputs, dropout_rate, make_dropout_seeds(dropout_key, ()))
        return module(inputs)

    def sequence_vectors(self, hidden_BLD: jax.Array, attention_mask: jax.Array) -> jax.Array:
        """Returns what a head that `reads_one_vector` reads of [B, L, D], as [B, 1, D]."""
        return pool_tokens(hidden_BLD, attention_mask, self.config.sequence_pooling)[:, None]


def _check_heads(heads: tuple[str, ...], parts: set[str]) -> None:
    if unknown_heads := [name for name in heads if name not in HEADS]:
        raise ConfigError(
            f"heads contains {unknown_heads[0]!r}; expected names from {', '.join(HEADS)}"
        )
    for name in ("next_sentence", "sentence_order"):
        if name in heads and "pooler" not in parts:
            raise ConfigError(
                f"heads is {heads}, but the head {name!r} uses the output of the pooler; "
                "add 'pooler'"
            )


@functools.cache
def build_network(
    config: EncoderConfig,
    heads: tuple[str, ...] = (),
    task_head: TaskHead | None = None,
    compute: ComputeConfig = ComputeConfig(),  # noqa: B008 (frozen)
) -> Network[EncoderWithHeads]:
    """Returns an encoder with heads as pure functions over its parameters."""
    return Network(
        lambda rngs: EncoderWithHeads(config, compute, rngs, heads=heads, task_head=task_head)
    )


@functools.cache
def build_encoder_decoder_network(
    config: EncoderDecoderConfig,
    compute: ComputeConfig = ComputeConfig(),  # noqa: B008 (frozen)
) -> Network[EncoderDecoder]:
    """Returns an encoder-decoder as pure functions over its parameters."""
    return Network(lambda rngs: build_encoder_decoder(config, compute, rngs))


def forward(
    params: Mapping[str, Any],
    config: EncoderConfig,
    batch: Batch,
    task_head: TaskHead | None = None,
) -> dict[str, Any]:
    """Computes the outputs of `EncoderWithHeads.__call__` for all heads in `params`: pure."""
    heads = tuple(head for head in HEADS if head in params)
    return build_network(config, heads, task_head).merge(dict(params))(batch)


def run_forward(
    params: Mapping[str, Any],
    config: EncoderConfig,
    batch: Batch,
    task_head: TaskHead | None = None,
) -> dict[str, Any]:
    """Compiles and runs `forward` with matmul precision "highest"; returns NumPy arrays."""
    # Accelerators multiply float32 matrices in lower precision by default.
    with jax.default_matmul_precision("highest"):
        return jax.device_get(_jitted_forward(config, task_head)(dict(params), dict(batch)))


@functools.cache
def _jitted_forward(config: EncoderConfig, task_head: TaskHead | None) -> Callable[..., Any]:
    return jax.jit(lambda params, batch: forward(params, config, batch, task_head))
