"""Defines the fine-tuning objective: an encoder with the head of a task, its loss and outputs."""

import math

import jax
import jax.numpy as jnp

from bert_jax.batch import encoder_inputs
from bert_jax.config.objectives import FineTuning
from bert_jax.losses import WeightedMean, padding_fraction
from bert_jax.models.adapters.config import Adapter
from bert_jax.models.adapters.network import AdaptedNetwork
from bert_jax.models.heads.config import (
    TaskHead,
    head_param_name,
    label_tokens_of,
    reads_one_vector,
)
from bert_jax.models.model import EncoderWithHeads, build_network
from bert_jax.objectives.base import Batch, LossOutput, Objective, TrainedModel
from bert_jax.params import paths
from bert_jax.params.functional import Params
from bert_jax.tasks.listwise_losses import listwise_spec
from bert_jax.tasks.losses import HeadOutputs
from bert_jax.tasks.registry import head_spec


class FineTuningObjective(Objective):
    """Implements the `Objective` of a `FineTuning` config, and prediction."""

    def __init__(self, config: FineTuning, adapter: Adapter | None = None):
        """Builds the network; `adapter` None is a network without adapter."""
        self.config = config
        self.spec = head_spec(config.head)
        if config.listwise_loss is not None:
            self.spec = listwise_spec(self.spec, config.listwise_loss)
        self.network = build_network(config.model, (), config.head, config.compute)
        if adapter is not None:
            self.network = AdaptedNetwork(self.network, adapter, config.model, config.compute)

    def init(self, key: jax.Array) -> Params:
        """Returns newly initialized parameters; probabilities of labels are their frequencies.

        With a bias of 0, the loss of rare labels falls fastest if the pooled vector becomes the
        same for all texts, and it takes hundreds of updates until texts differ again. Lin et al.
        2017, section 3.3, have the same start; `docs/results.md` has measurements.
        """
        params, config = super().init(key), self.config
        if config.label_frequencies:
            classifier = params["classifier"]
            weights = config.class_weights or (1.0,) * len(config.label_frequencies)
            log_odds = [
                math.log(max(weight, 1e-6) * frequency / (1 - frequency))
                for weight, frequency in zip(weights, config.label_frequencies, strict=True)
            ]
            classifier.get("out_proj", classifier)["bias"] = jnp.array(log_odds, jnp.float32)
        return params

    def input_fields(self) -> tuple[str, ...]:
        """Returns the batch fields that `predict` reads."""
        return self.spec.input_fields

    def batch_fields(self) -> tuple[str, ...]:
        """Returns the fields of `input_fields`, the labels, and the weights of the examples."""
        return (*self.input_fields(), *self.spec.label_fields, "example_weights")

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the sum of the weights of all labels, which are examples or words."""
        total = jnp.sum(self.spec.label_weights(batch, self.config.class_weights))
        # Class weights can make the total less than 1, so it is not clipped to 1 as a count would
        # be.
        return {"loss": jnp.where(total > 0, total, 1.0)}

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes the loss, and loss and accuracy (or mse) as metrics."""
        outputs = self.head_outputs(self.network.merge(params), batch, dropout_key)
        weighted_loss, metrics = self.label_loss(outputs, batch)
        mask = encoder_inputs(batch)["attention_mask"]
        metrics["padding_fraction"] = padding_fraction({"attention_mask": mask})
        return LossOutput(weighted_loss.total / loss_denominators["loss"], metrics)

    def pretrained_path(self, path: str, head: TaskHead | None) -> str | None:
        """Returns the same path; None for the layer of a head that the model does not have."""
        own_head = self.config.head
        # A classifier is reused for equal heads only; the pooler below it comes from the model
        # anyway.
        is_new = head != own_head and path.startswith(f"{head_param_name(own_head)}/")
        return None if is_new else path

    def masked_lm_purpose(self) -> str | None:
        """Returns that label words are scored, if the head has some."""
        return None if label_tokens_of(self.config.head) is None else "score label words"

    def trained_model(self, params: Params, task: str | None) -> TrainedModel:
        """Returns the encoder with the head of the task."""
        del task
        return TrainedModel(params=paths.without_auxiliary_networks(params), head=self.config.head)

    def head_outputs(
        self, network: EncoderWithHeads, batch: Batch, dropout_key: jax.Array | None
    ) -> HeadOutputs:
        """Runs the encoder and the head on a batch."""
        encoder_key = head_key = None
        if dropout_key is not None:
            encoder_key, head_key = jax.random.split(dropout_key)
        hidden = self.hidden_states(network, batch, encoder_key)
        logits = network.task_logits(
            hidden,
            self.token_mask(batch),
            self.config.classifier_dropout,
            head_key,
            batch.get("window_mask"),
            encoder_inputs(batch)["input_ids"],
        )
        return self.spec.make_outputs(logits, batch)

    def label_loss(
        self, outputs: HeadOutputs, batch: Batch
    ) -> tuple[WeightedMean, dict[str, WeightedMean]]:
        """Computes the loss of the labels, and the metrics, from the outputs of the head."""
        return self.spec.compute_loss(
            outputs, batch, self.config.class_weights, self.config.label_smoothing
        )

    def hidden_states(
        self, network: EncoderWithHeads, batch: Batch, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Runs the encoder: [B, L, D], or [B x A, L, D] for choices and windows."""
        return network.encode(batch, dropout_key).last_hidden_state

    def token_mask(self, batch: Batch) -> jax.Array:
        """Returns which positions of `hidden_states` are real tokens, int32 [B, L]."""
        return encoder_inputs(batch)["attention_mask"]

    def head_loss(
        self,
        network: EncoderWithHeads,
        hidden: jax.Array,
        batch: Batch,
        dropout_key: jax.Array | None,
    ) -> tuple[WeightedMean, dict[str, WeightedMean]]:
        """Computes the loss and metrics of the head from `hidden_states`."""
        logits = network.task_logits(
            hidden, self.token_mask(batch), self.config.classifier_dropout, dropout_key
        )
        return self.label_loss(self.spec.make_outputs(logits, batch), batch)

    def predict(self, params: Params, batch: Batch) -> HeadOutputs:
        """Computes the outputs of the head without dropout. Pure: may be compiled with jit."""
        return self.head_outputs(self.network.merge(params), batch, None)

    def encoder_features(self, params: Params, batch: Batch) -> jax.Array:
        """Computes encoder features to cache, without dropout. Pure: may be compiled with jit.

        Returns:
          float32 [B, L, D] of all tokens; [B, A, D] if the head reads one vector of a sequence, for
          example that of the first token, where A is 1 without choices or windows.
        """
        network = self.network.merge(params)
        hidden = network.encode(batch).last_hidden_state
        if reads_one_vector(self.config.head):
            batch_size = batch[self.spec.input_fields[0]].shape[0]
            vectors = network.sequence_vectors(hidden, self.token_mask(batch))
            hidden = vectors.reshape(batch_size, -1, hidden.shape[-1])
        # The cache is float32, so that it fits runs of any compute dtype.
        return hidden.astype(jnp.float32)


class CachedFeaturesObjective(FineTuningObjective):
    """Trains the head on cached encoder features, which are a batch field; no encoder runs."""

    def input_fields(self) -> tuple[str, ...]:
        """Returns the batch fields that `predict` reads."""
        return (*self.spec.input_fields, self.spec.features_field)

    def hidden_states(
        self, network: EncoderWithHeads, batch: Batch, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Returns cached features, which were computed without dropout.

        One vector for each sequence, [B, D] or [B, A, D], becomes a sequence of one token.
        """
        features = batch[self.spec.features_field].astype(jnp.dtype(network.compute.dtype))
        if reads_one_vector(self.config.head):
            return features.reshape(-1, 1, features.shape[-1])
        return features

    def token_mask(self, batch: Batch) -> jax.Array:
        """Returns which positions of `hidden_states` are real tokens, int32 [B, L]."""
        mask = super().token_mask(batch)
        # The cached vector is a sequence of one token, which is always real.
        return jnp.ones_like(mask[:, :1]) if reads_one_vector(self.config.head) else mask
