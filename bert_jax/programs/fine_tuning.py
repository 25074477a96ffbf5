"""Fine-tuning: an encoder with the head of a task, its objective, and its predictions."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.batch import CHOICE_FIELDS, ENCODER_FIELDS, SPAN_FIELDS, TOKEN_LABEL_FIELDS
from bert_jax.models.bert import BertEncoder
from bert_jax.models.config import (
    BertConfig,
    ChoiceHead,
    Compute,
    RegressionHead,
    SequenceHead,
    SpanHead,
    TaskHead,
    TokenHead,
    reads_pooled,
)
from bert_jax.models.dropout import dropout, seeds
from bert_jax.models.heads import Pooler, head_linear
from bert_jax.nn import Network, Params
from bert_jax.objectives import fine_tuning as objectives
from bert_jax.objectives.mean import Mean
from bert_jax.objectives.pretraining import padding_share
from bert_jax.programs.config import FineTuning
from bert_jax.programs.program import Batch, Losses

Predictions = dict[str, jax.Array]
"""What a head says of a batch, float32, by the kind of head:

sequence "logits" [B, C]; regression "values" [B]; token "logits" [B, L, C]; span "start_logits" and
"end_logits" [B, L]; choice "logits" [B, A].
"""


class BertForTask(nnx.Module):
    """Encoder, a pooler where the head reads one, and the head's linear layer."""

    def __init__(self, config: BertConfig, head: TaskHead, compute: Compute, rngs: nnx.Rngs):
        self.encoder = BertEncoder(config, compute, rngs)
        if reads_pooled(head):
            self.pooler = Pooler(config, compute, rngs)
        layer = head_linear(config, head, rngs)
        if isinstance(head, SpanHead):
            self.span = layer
        else:
            self.classifier = layer
        self.head = head

    def encode(self, batch: Batch, dropout_key: jax.Array | None = None) -> jax.Array:
        """The encoder's last states [B, L, D]; under a `ChoiceHead` of choices, [B x A, L, D].

        A batch with `states_field` was read before: its states are taken as they are, and those of
        first tokens as texts of one token.
        """
        field = states_field(self.head)
        if field in batch:
            states = batch[field].astype(jnp.dtype(self.encoder.compute.dtype))
            return states.reshape(-1, 1, states.shape[-1]) if reads_pooled(self.head) else states
        return self.encoder(
            *encoder_inputs(batch, self.head),
            position_ids=batch.get("position_ids"),
            packing_ids=batch.get("packing_ids"),
            dropout_key=dropout_key,
        ).last_hidden_state

    def features(self, hidden: jax.Array) -> jax.Array:
        """What the head reads of the states: pooled first tokens [B, D], or all of them."""
        return self.pooler(hidden) if reads_pooled(self.head) else hidden

    def predictions(self, features: jax.Array, batch: Batch) -> Predictions:
        """The head's linear layer on its features."""
        match self.head:
            case SequenceHead() | TokenHead():
                return {"logits": self.classifier(features)}
            case RegressionHead():
                return {"values": self.classifier(features)[:, 0]}
            case SpanHead():
                scores = self.span(features)
                return {"start_logits": scores[..., 0], "end_logits": scores[..., 1]}
            case ChoiceHead():
                scores = self.classifier(features)
                return {"logits": scores.reshape(batch[CHOICE_FIELDS[0]].shape[:2])}


def encoder_inputs(batch: Batch, head: TaskHead) -> tuple[jax.Array, ...]:
    """ids, token types and mask for the encoder; choices [B, A, L] become rows [B x A, L]."""
    if isinstance(head, ChoiceHead):
        return tuple(batch[name].reshape(-1, batch[name].shape[-1]) for name in CHOICE_FIELDS)
    return tuple(batch[name] for name in ENCODER_FIELDS)


def states_field(head: TaskHead) -> str:
    """The batch field for the states of a frozen encoder that a head or its pooler reads."""
    match head:
        case SequenceHead() | RegressionHead():
            return "first_states"
        case ChoiceHead():
            return "choice_first_states"
        case TokenHead() | SpanHead():
            return "encoder_states"


class FineTuningProgram:
    """The `Program` of a `FineTuning` config, with `predict`."""

    def __init__(self, config: FineTuning):
        self.config = config
        self.network = Network(
            lambda rngs: BertForTask(config.model, config.head, config.compute, rngs)
        )

    def abstract(self) -> Params:
        """Parameters as shapes and dtypes."""
        return self.network.abstract()

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters, float32."""
        return self.network.init(key)

    def input_fields(self) -> tuple[str, ...]:
        """The fields that `predict` and `states` need."""
        return CHOICE_FIELDS if isinstance(self.config.head, ChoiceHead) else ENCODER_FIELDS

    def fields(self) -> tuple[str, ...]:
        """Those of `predict`, the labels of the head's kind, and the weights of the rows."""
        match self.config.head:
            case SequenceHead() | ChoiceHead():
                labels: tuple[str, ...] = ("labels",)
            case RegressionHead():
                labels = ("label_values",)
            case TokenHead():
                labels = TOKEN_LABEL_FIELDS
            case SpanHead():
                labels = SPAN_FIELDS
        return (*self.input_fields(), *labels, "example_weights")

    def normalisers(self, batch: Batch) -> dict[str, jax.Array]:
        """The sum of the weights of all labels: rows or words, each times its class's weight."""
        classes = self.config.class_weights
        match self.config.head:
            case SequenceHead():
                weights = objectives.weigh_classes(
                    batch["example_weights"], batch["labels"], classes
                )
            case TokenHead():
                words = objectives.word_weights(batch)
                weights = objectives.weigh_classes(words, batch["token_labels"], classes)
            case RegressionHead() | SpanHead() | ChoiceHead():
                weights = batch["example_weights"]
        total = jnp.sum(weights)
        return {"loss": jnp.where(total > 0, total, 1.0)}

    def losses(
        self,
        params: Params,
        batch: Batch,
        normalisers: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> Losses:
        """The task's loss, and loss and accuracy (or mse) as metrics."""
        network = self.network.bind(params)
        encoder_key = head_key = None
        if dropout_key is not None:
            encoder_key, head_key = jax.random.split(dropout_key)
        hidden = network.encode(batch, encoder_key)
        part, metrics = self.head_loss(network, hidden, batch, head_key)
        mask = encoder_inputs(batch, self.config.head)[2]
        metrics["padding_share"] = padding_share({"attention_mask": mask})
        return Losses(part.total / normalisers["loss"], metrics)

    def head_loss(
        self, network: BertForTask, hidden: jax.Array, batch: Batch, dropout_key: jax.Array | None
    ) -> tuple[Mean, dict[str, Mean]]:
        """The head's loss and metrics, from what `network.encode` gives for the batch."""
        features = network.features(hidden)
        if dropout_key is not None and not isinstance(self.config.head, SpanHead):
            features = dropout(features, self.config.dropout, seeds(dropout_key, ()))
        return self._objective(network.predictions(features, batch), batch)

    def predict(self, params: Params, batch: Batch) -> Predictions:
        """What the head says of a batch of `input_fields`, without dropout. Pure: jit it."""
        network = self.network.bind(params)
        return network.predictions(network.features(network.encode(batch)), batch)

    def states(self, params: Params, batch: Batch) -> jax.Array:
        """What `states_field` holds of a batch of `input_fields`, without dropout. Pure: jit it.

        Returns:
          float32 [B, L, D] of all tokens, or [B, A, D] of first tokens, A = 1 without choices.
        """
        hidden = self.network.bind(params).encode(batch)
        if reads_pooled(self.config.head):
            rows = batch[self.input_fields()[0]].shape[0]
            hidden = hidden[:, 0].reshape(rows, -1, hidden.shape[-1])
        return hidden.astype(jnp.float32)

    def _objective(self, predicted: Predictions, batch: Batch) -> tuple[Mean, dict[str, Mean]]:
        config = self.config
        match config.head:
            case SequenceHead() | ChoiceHead():
                return objectives.classification(
                    predicted["logits"], batch, config.class_weights, config.label_smoothing
                )
            case RegressionHead():
                return objectives.regression(predicted["values"], batch)
            case TokenHead():
                return objectives.tagging(
                    predicted["logits"], batch, config.class_weights, config.label_smoothing
                )
            case SpanHead():
                return objectives.spans(predicted["start_logits"], predicted["end_logits"], batch)
