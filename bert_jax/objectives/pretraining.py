"""Computes the pretraining loss: masked LM and, for BERT, next-sentence prediction.

Source: Devlin et al. 2019, section 3.1. `PretrainingObjective` adds the two losses, which are pure
functions of logits and batch fields and return their loss and metrics as `WeightedMean`s.

The masks are part of the batch. Special tokens are never predicted, in RoBERTa either, unlike in
fairseq (`bert_jax/data/pretraining/masking.py`).
"""

import jax
import jax.numpy as jnp

from bert_jax.batch import ENCODER_FIELDS, MASKED_LM_FIELDS, NEXT_SENTENCE_FIELDS
from bert_jax.functional import Params
from bert_jax.models.heads.modules import gather_positions
from bert_jax.models.model import build_network
from bert_jax.objectives.base import Batch, LossOutput
from bert_jax.objectives.config import Pretraining
from bert_jax.objectives.weighted_mean import (
    WeightedMean,
    cross_entropy,
    is_correct,
    padding_fraction,
    weighted_mean,
)

Metrics = dict[str, WeightedMean]


class PretrainingObjective:
    """Implements the `Objective` of a `Pretraining` config.

    Attributes:
      network: the encoder with the pretraining heads of its family.
    """

    def __init__(self, config: Pretraining):
        self.config = config
        self.network = build_network(
            config.model, config.model.pretraining_heads, compute=config.compute
        )

    def abstract(self) -> Params:
        """Returns the parameters as shapes and dtypes."""
        return self.network.abstract()

    def init(self, key: jax.Array) -> Params:
        """Returns newly initialized parameters, float32."""
        return self.network.init(key)

    def batch_fields(self) -> tuple[str, ...]:
        """Returns the fields of the encoder and of each loss whose weight is not 0."""
        fields = ENCODER_FIELDS
        if self.config.mlm_weight:
            fields += MASKED_LM_FIELDS
        if self.config.nsp_weight:
            fields += NEXT_SENTENCE_FIELDS
        return fields

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of selected positions for masked LM, of examples for next sentence."""
        denominators = {}
        if self.config.mlm_weight:
            denominators["mlm"] = jnp.maximum(jnp.sum(batch["masked_lm_weights"]), 1.0)
        if self.config.nsp_weight:
            denominators["nsp"] = jnp.float32(batch["next_sentence_labels"].shape[0])
        return denominators

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes mlm_weight * MLM + nsp_weight * NSP; a loss of weight 0 is not computed."""
        model = self.network.merge(params)
        hidden = model.encode(batch, dropout_key).last_hidden_state
        loss = jnp.float32(0)
        metrics: Metrics = {"padding_fraction": padding_fraction(batch)}
        if self.config.mlm_weight:
            selected_hidden = gather_positions(hidden, batch["masked_lm_positions"])
            logits = model.masked_lm_logits(selected_hidden)
            weighted_loss, objective_metrics = masked_lm_loss(
                logits, batch, self.config.mask_token_id
            )
            loss += self.config.mlm_weight * weighted_loss.total / loss_denominators["mlm"]
            metrics |= objective_metrics
        if self.config.nsp_weight:
            weighted_loss, objective_metrics = next_sentence_loss(
                model.next_sentence_logits(hidden), batch
            )
            loss += self.config.nsp_weight * weighted_loss.total / loss_denominators["nsp"]
            metrics |= objective_metrics
        return LossOutput(loss, metrics)


def masked_lm_loss(
    logits_BPV: jax.Array, batch: Batch, mask_token_id: int
) -> tuple[WeightedMean, Metrics]:
    """Computes the masked-LM loss: cross-entropy over all selected positions.

    The metrics are loss and accuracy over all of them, and over those where the input is the mask
    token ("masked"), the original token ("kept") or a random one ("random").
    """
    labels, weights = batch["masked_lm_ids"], batch["masked_lm_weights"]
    losses = cross_entropy(logits_BPV, labels)
    correct = is_correct(logits_BPV, labels)
    selected_input_ids = jnp.take_along_axis(
        batch["input_ids"], batch["masked_lm_positions"], axis=1
    )
    group_masks = {
        "masked": selected_input_ids == mask_token_id,
        "kept": selected_input_ids == labels,
        "random": (selected_input_ids != mask_token_id) & (selected_input_ids != labels),
    }
    loss = weighted_mean(losses, weights)
    metrics = {"mlm_loss": loss, "mlm_accuracy": weighted_mean(correct, weights)}
    for name, in_group in group_masks.items():
        group_weights = jnp.where(in_group, weights, 0.0)
        metrics[f"mlm_loss_{name}"] = weighted_mean(losses, group_weights)
        metrics[f"mlm_accuracy_{name}"] = weighted_mean(correct, group_weights)
    return loss, metrics


def next_sentence_loss(logits_BC: jax.Array, batch: Batch) -> tuple[WeightedMean, Metrics]:
    """Computes the next-sentence loss: cross-entropy of IsNext (0) and NotNext (1)."""
    labels = batch["next_sentence_labels"]
    ones = jnp.ones(labels.shape, jnp.float32)
    loss = weighted_mean(cross_entropy(logits_BC, labels), ones)
    correct = is_correct(logits_BC, labels)
    return loss, {"nsp_loss": loss, "nsp_accuracy": weighted_mean(correct, ones)}
