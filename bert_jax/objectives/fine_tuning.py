"""Fine-tuning: an encoder with the head of a task, its objective, and its predictions."""

import jax
import jax.numpy as jnp

from bert_jax.batch import CHOICE_FIELDS, ENCODER_FIELDS, SPAN_FIELDS, TOKEN_LABEL_FIELDS
from bert_jax.functional import Params
from bert_jax.models.heads.config import (
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RegressionHead,
    SequenceClassificationHead,
    TaskHead,
    TokenClassificationHead,
    reads_first_token,
)
from bert_jax.models.model import EncoderWithHeads, build_network, encoder_inputs
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


def encoder_features_field(head: TaskHead) -> str:
    """The batch field for the states of a frozen encoder that a head or its pooler reads."""
    match head:
        case SequenceClassificationHead() | RegressionHead():
            return "cls_encoder_features"
        case MultipleChoiceHead():
            return "choice_cls_encoder_features"
        case TokenClassificationHead() | QuestionAnsweringHead():
            return "encoder_features"


def encode(network: EncoderWithHeads, batch: Batch, dropout_key: jax.Array | None) -> jax.Array:
    """Returns the encoder's last states [B, L, D]; of a batch with choices [B x A, L, D].

    A batch with `encoder_features_field` holds the output of a frozen encoder: its states are
    returned as they are, those of first tokens as sequences of one token.
    """
    assert network.task_head is not None
    field = encoder_features_field(network.task_head)
    if field not in batch:
        return network.encode(batch, dropout_key).last_hidden_state
    features = batch[field].astype(jnp.dtype(network.compute.dtype))
    if reads_first_token(network.task_head):
        return features.reshape(-1, 1, features.shape[-1])
    return features


def head_outputs(logits: jax.Array, head: TaskHead, batch: Batch) -> HeadOutputs:
    """Names and shapes the logits of a task head, [B, outputs] or [B, L, outputs]."""
    match head:
        case SequenceClassificationHead() | TokenClassificationHead():
            return {"logits": logits}
        case RegressionHead():
            return {"values": logits[:, 0]}
        case QuestionAnsweringHead():
            return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
        case MultipleChoiceHead():
            return {"logits": logits.reshape(batch[CHOICE_FIELDS[0]].shape[:2])}


class FineTuningObjective:
    """The `Program` of a `FineTuning` config, with `predict`."""

    def __init__(self, config: FineTuning):
        self.config = config
        self.network = build_network(config.model, (), config.head, config.compute)

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
        hidden = encode(network, batch, encoder_key)
        weighted_loss, metrics = self.head_loss(network, hidden, batch, head_key)
        mask = encoder_inputs(batch)["attention_mask"]
        metrics["padding_fraction"] = padding_fraction({"attention_mask": mask})
        return LossOutput(weighted_loss.total / loss_denominators["loss"], metrics)

    def head_loss(
        self,
        network: EncoderWithHeads,
        hidden: jax.Array,
        batch: Batch,
        dropout_key: jax.Array | None,
    ) -> tuple[WeightedMean, dict[str, WeightedMean]]:
        """The head's loss and metrics, from what `network.encode` gives for the batch."""
        logits = network.task_logits(hidden, self.config.classifier_dropout, dropout_key)
        return self._task_loss(head_outputs(logits, self.config.head, batch), batch)

    def predict(self, params: Params, batch: Batch) -> HeadOutputs:
        """What the head says of a batch of `input_fields`, without dropout. Pure: jit it."""
        network = self.network.merge(params)
        logits = network.task_logits(encode(network, batch, None))
        return head_outputs(logits, self.config.head, batch)

    def encoder_features(self, params: Params, batch: Batch) -> jax.Array:
        """What `states_field` holds of a batch of `input_fields`, without dropout. Pure: jit it.

        Returns:
          float32 [B, L, D] of all tokens, or [B, A, D] of first tokens, A = 1 without choices.
        """
        hidden = self.network.merge(params).encode(batch).last_hidden_state
        if reads_first_token(self.config.head):
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
