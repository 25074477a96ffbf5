"""Fine-tuning: an encoder with the head of a task, its objective, and its predictions."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.batch import CHOICE_FIELDS, ENCODER_FIELDS, SPAN_FIELDS, TOKEN_LABEL_FIELDS
from bert_jax.functional import Network, Params
from bert_jax.models.bert.model import BertEncoder
from bert_jax.models.config import (
    BertConfig,
    ComputeConfig,
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RegressionHead,
    SequenceClassificationHead,
    TaskHead,
    TokenClassificationHead,
    uses_pooler,
)
from bert_jax.models.layers.dropout import dropout, make_dropout_seeds
from bert_jax.models.layers.heads import Pooler, head_linear
from bert_jax.objectives import fine_tuning_losses as objectives
from bert_jax.objectives.base import Batch, LossOutput
from bert_jax.objectives.config import FineTuning
from bert_jax.objectives.pretraining_losses import padding_fraction
from bert_jax.objectives.weighted_mean import WeightedMean

HeadOutputs = dict[str, jax.Array]
"""What a head says of a batch, float32, by the kind of head:

sequence "logits" [B, C]; regression "values" [B]; token "logits" [B, L, C]; span "start_logits" and
"end_logits" [B, L]; choice "logits" [B, A].
"""


class BertForTask(nnx.Module):
    """Encoder, a pooler where the head reads one, and the head's linear layer."""

    def __init__(self, config: BertConfig, head: TaskHead, compute: ComputeConfig, rngs: nnx.Rngs):
        self.encoder = BertEncoder(config, compute, rngs)
        if uses_pooler(head):
            self.pooler = Pooler(config, compute, rngs)
        layer = head_linear(config, head, rngs)
        if isinstance(head, QuestionAnsweringHead):
            self.span = layer
        else:
            self.classifier = layer
        self.head = head

    def encode(self, batch: Batch, dropout_key: jax.Array | None = None) -> jax.Array:
        """The encoder's last states [B, L, D]; under a `ChoiceHead` of choices, [B x A, L, D].

        A batch with `states_field` was read before: its states are taken as they are, and those of
        first tokens as texts of one token.
        """
        field = encoder_features_field(self.head)
        if field in batch:
            encoder_features = batch[field].astype(jnp.dtype(self.encoder.compute.dtype))
            return (
                encoder_features.reshape(-1, 1, encoder_features.shape[-1])
                if uses_pooler(self.head)
                else encoder_features
            )
        return self.encoder(
            *encoder_inputs(batch, self.head),
            position_ids=batch.get("position_ids"),
            packing_ids=batch.get("packing_ids"),
            dropout_key=dropout_key,
        ).last_hidden_state

    def head_inputs(self, hidden: jax.Array) -> jax.Array:
        """What the head reads of the states: pooled first tokens [B, D], or all of them."""
        return self.pooler(hidden) if uses_pooler(self.head) else hidden

    def apply_head(self, head_inputs: jax.Array, batch: Batch) -> HeadOutputs:
        """The head's linear layer on its features."""
        match self.head:
            case SequenceClassificationHead() | TokenClassificationHead():
                return {"logits": self.classifier(head_inputs)}
            case RegressionHead():
                return {"values": self.classifier(head_inputs)[:, 0]}
            case QuestionAnsweringHead():
                logits = self.span(head_inputs)
                return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
            case MultipleChoiceHead():
                logits = self.classifier(head_inputs)
                return {"logits": logits.reshape(batch[CHOICE_FIELDS[0]].shape[:2])}


def encoder_inputs(batch: Batch, head: TaskHead) -> tuple[jax.Array, ...]:
    """ids, token types and mask for the encoder; choices [B, A, L] become rows [B x A, L]."""
    if isinstance(head, MultipleChoiceHead):
        return tuple(batch[name].reshape(-1, batch[name].shape[-1]) for name in CHOICE_FIELDS)
    return tuple(batch[name] for name in ENCODER_FIELDS)


def encoder_features_field(head: TaskHead) -> str:
    """The batch field for the states of a frozen encoder that a head or its pooler reads."""
    match head:
        case SequenceClassificationHead() | RegressionHead():
            return "cls_encoder_features"
        case MultipleChoiceHead():
            return "choice_cls_encoder_features"
        case TokenClassificationHead() | QuestionAnsweringHead():
            return "encoder_features"


class FineTuningObjective:
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
        return CHOICE_FIELDS if isinstance(self.config.head, MultipleChoiceHead) else ENCODER_FIELDS

    def batch_fields(self) -> tuple[str, ...]:
        """Those of `predict`, the labels of the head's kind, and the weights of the rows."""
        match self.config.head:
            case SequenceClassificationHead() | MultipleChoiceHead():
                label_fields: tuple[str, ...] = ("labels",)
            case RegressionHead():
                label_fields = ("label_values",)
            case TokenClassificationHead():
                label_fields = TOKEN_LABEL_FIELDS
            case QuestionAnsweringHead():
                label_fields = SPAN_FIELDS
        return (*self.input_fields(), *label_fields, "example_weights")

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """The sum of the weights of all labels: rows or words, each times its class's weight."""
        class_weights = self.config.class_weights
        match self.config.head:
            case SequenceClassificationHead():
                weights = objectives.apply_class_weights(
                    batch["example_weights"], batch["labels"], class_weights
                )
            case TokenClassificationHead():
                word_weights = objectives.word_weights(batch)
                weights = objectives.apply_class_weights(
                    word_weights, batch["token_labels"], class_weights
                )
            case RegressionHead() | QuestionAnsweringHead() | MultipleChoiceHead():
                weights = batch["example_weights"]
        total = jnp.sum(weights)
        return {"loss": jnp.where(total > 0, total, 1.0)}

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """The task's loss, and loss and accuracy (or mse) as metrics."""
        network = self.network.merge(params)
        encoder_key = head_key = None
        if dropout_key is not None:
            encoder_key, head_key = jax.random.split(dropout_key)
        hidden = network.encode(batch, encoder_key)
        weighted_loss, metrics = self.head_loss(network, hidden, batch, head_key)
        mask = encoder_inputs(batch, self.config.head)[2]
        metrics["padding_fraction"] = padding_fraction({"attention_mask": mask})
        return LossOutput(weighted_loss.total / loss_denominators["loss"], metrics)

    def head_loss(
        self, network: BertForTask, hidden: jax.Array, batch: Batch, dropout_key: jax.Array | None
    ) -> tuple[WeightedMean, dict[str, WeightedMean]]:
        """The head's loss and metrics, from what `network.encode` gives for the batch."""
        head_inputs = network.head_inputs(hidden)
        if dropout_key is not None and not isinstance(self.config.head, QuestionAnsweringHead):
            head_inputs = dropout(
                head_inputs, self.config.classifier_dropout, make_dropout_seeds(dropout_key, ())
            )
        return self._task_loss(network.apply_head(head_inputs, batch), batch)

    def predict(self, params: Params, batch: Batch) -> HeadOutputs:
        """What the head says of a batch of `input_fields`, without dropout. Pure: jit it."""
        network = self.network.merge(params)
        return network.apply_head(network.head_inputs(network.encode(batch)), batch)

    def encoder_features(self, params: Params, batch: Batch) -> jax.Array:
        """What `states_field` holds of a batch of `input_fields`, without dropout. Pure: jit it.

        Returns:
          float32 [B, L, D] of all tokens, or [B, A, D] of first tokens, A = 1 without choices.
        """
        hidden = self.network.merge(params).encode(batch)
        if uses_pooler(self.config.head):
            batch_size = batch[self.input_fields()[0]].shape[0]
            hidden = hidden[:, 0].reshape(batch_size, -1, hidden.shape[-1])
        return hidden.astype(jnp.float32)

    def _task_loss(
        self, head_outputs: HeadOutputs, batch: Batch
    ) -> tuple[WeightedMean, dict[str, WeightedMean]]:
        config = self.config
        match config.head:
            case SequenceClassificationHead() | MultipleChoiceHead():
                return objectives.classification(
                    head_outputs["logits"], batch, config.class_weights, config.label_smoothing
                )
            case RegressionHead():
                return objectives.regression(head_outputs["values"], batch)
            case TokenClassificationHead():
                return objectives.token_classification(
                    head_outputs["logits"], batch, config.class_weights, config.label_smoothing
                )
            case QuestionAnsweringHead():
                return objectives.span_extraction(
                    head_outputs["start_logits"], head_outputs["end_logits"], batch
                )
