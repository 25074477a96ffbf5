"""Computes the pretraining loss, a weighted sum of the losses that the config gives a weight.

    mlm        masked LM                    BERT (Devlin et al. 2019, section 3.1)
    diffusion  masked diffusion             MDLM (Sahoo et al. 2024), LLaDA (Nie et al. 2025)
    nsp        next-sentence prediction     BERT
    sop        sentence-order prediction    ALBERT (Lan et al. 2020, section 3.1)
    sbo        span boundary objective      SpanBERT (Joshi et al. 2020, section 3.2)

The losses are pure functions of logits and batch fields and return their loss
and metrics as `WeightedMean`s.

With `masked_next_token`, a masked token is predicted at the position before it (MNTP, BehnamGhader
et al. 2024), and some sequences of a batch may be read left to right, of which every next token is
predicted by the same head (GPT-BERT, Charpentier and Samuel 2024; `is_causal`).

The masks are part of the batch. Special tokens are never predicted, in RoBERTa either, unlike in
fairseq (`bert_jax/data/pretraining/masking.py`).
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.batch import (
    DIFFUSION_FIELDS,
    ENCODER_FIELDS,
    MASKED_LM_FIELDS,
    NEXT_SENTENCE_FIELDS,
    SENTENCE_ORDER_FIELDS,
    SPAN_BOUNDARY_FIELDS,
)
from bert_jax.config.objectives import Pretraining
from bert_jax.losses import WeightedMean, cross_entropy, is_correct, padding_fraction, weighted_mean
from bert_jax.models.heads.config import SPAN_POSITION_EMBEDDING_SIZE
from bert_jax.models.heads.modules import gather_positions
from bert_jax.models.layers.stack import TokenSelection
from bert_jax.models.model import EncoderWithHeads, build_network
from bert_jax.objectives.base import (
    Batch,
    BatchSizes,
    LossOutput,
    Objective,
    TrainedModel,
    masked_lm_flops,
)
from bert_jax.params.functional import Params

Metrics = dict[str, WeightedMean]


class LossInputs(NamedTuple):
    """Names what a loss needs: heads of the model, and batch fields besides the encoder's."""

    heads: tuple[str, ...]
    batch_fields: tuple[str, ...]


LOSSES = {
    "mlm": LossInputs(("masked_lm",), MASKED_LM_FIELDS),
    "diffusion": LossInputs(("masked_lm",), MASKED_LM_FIELDS + DIFFUSION_FIELDS),
    "nsp": LossInputs(("pooler", "next_sentence"), NEXT_SENTENCE_FIELDS),
    "sop": LossInputs(("pooler", "sentence_order"), SENTENCE_ORDER_FIELDS),
    "sbo": LossInputs(("span_boundary",), ("masked_lm_ids", *SPAN_BOUNDARY_FIELDS)),
}
"""The losses by name; `Pretraining.loss_weights` has the same names."""


class PretrainingObjective(Objective):
    """Implements the `Objective` of a `Pretraining` config.

    Attributes:
      network: the encoder with the pretraining heads of its family and of the losses.
      losses: the names of the losses whose weight is not 0.
    """

    shown_metrics = (
        *("mlm_loss", "mlm_accuracy", "diffusion_loss", "diffusion_accuracy"),
        *("lm_loss", "lm_accuracy", "nsp_accuracy", "sop_accuracy", "sbo_accuracy"),
        "loss",
    )

    def __init__(self, config: Pretraining):
        self.config = config
        self.losses = [name for name, weight in config.loss_weights.items() if weight]
        # The heads of the family exist whatever the weights are, so that the parameters of a run do
        # not depend on them. Other heads exist if their loss has a weight.
        needed_heads = [head for name in self.losses for head in LOSSES[name].heads]
        heads = tuple(dict.fromkeys((*config.model.pretraining_heads, *needed_heads)))
        self.network = build_network(config.model, heads, compute=config.compute)

    def batch_fields(self) -> tuple[str, ...]:
        """Returns the fields of the encoder and of each loss whose weight is not 0."""
        needed_fields = [field for name in self.losses for field in LOSSES[name].batch_fields]
        return tuple(dict.fromkeys((*ENCODER_FIELDS, *needed_fields)))

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the divisor of each loss, such as the number of selected positions ("mlm")."""
        if self.config.masked_next_token:
            batch = with_next_token_weights(batch)
        if "is_causal" in batch:
            return _denominators_of_rows(batch)
        return {name: _denominator(name, batch) for name in self.losses}

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes the weighted sum of the losses; a loss of weight 0 is not computed."""
        model = self.network.merge(params)
        if self.config.masked_next_token:
            batch = with_next_token_weights(batch)
        causal = batch["is_causal"] > 0 if "is_causal" in batch else False
        selection = None if dropout_key is None else self.select_tokens(params, batch)
        hidden = model.encode(
            batch, dropout_key, causal=causal, selection=selection
        ).last_hidden_state
        return LossOutput(*self.hard_losses(model, hidden, batch, loss_denominators))

    def select_tokens(self, params: Params, batch: Batch) -> TokenSelection | None:
        """Returns the tokens that the middle layers read in training; None for all."""
        del params, batch
        return None

    def token_metrics(self, logits_BPV: jax.Array, batch: Batch) -> Metrics:
        """Returns further sums over the masked tokens, which may be arrays."""
        del logits_BPV, batch
        return {}

    def hard_losses(
        self,
        model: EncoderWithHeads,
        hidden: jax.Array,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
    ) -> tuple[jax.Array, Metrics]:
        """Computes the weighted sum of the losses from the last hidden states, and the metrics."""
        loss = jnp.float32(0)
        metrics: Metrics = {"padding_fraction": padding_fraction(batch)}
        if "is_causal" in batch:  # masked LM is the only loss, which the config has checked
            logits = self._masked_lm_logits(model, hidden, batch)
            one_loss, loss_metrics = masked_and_causal_loss(
                logits, batch, loss_denominators, self.config.mask_token_id
            )
            return self.config.mlm_weight * one_loss, metrics | loss_metrics
        for name in self.losses:
            one_loss, loss_metrics = self._loss(name, model, hidden, batch)
            loss += self.config.loss_weights[name] * one_loss.total / loss_denominators[name]
            metrics |= loss_metrics
        return loss, metrics

    def _loss(
        self, name: str, model: EncoderWithHeads, hidden_BLD: jax.Array, batch: Batch
    ) -> tuple[WeightedMean, Metrics]:
        """Returns one loss, not divided yet, and its metrics."""
        match name:
            case "mlm" | "diffusion":
                logits = self._masked_lm_logits(model, hidden_BLD, batch)
                if name == "diffusion":
                    return masked_diffusion_loss(logits, batch)
                loss, metrics = masked_lm_loss(logits, batch, self.config.mask_token_id)
                return loss, metrics | self.token_metrics(logits, batch)
            case "nsp":
                return next_sentence_loss(model.next_sentence_logits(hidden_BLD), batch)
            case "sop":
                return sentence_order_loss(model.sentence_order_logits(hidden_BLD), batch)
            case _:
                return span_boundary_loss(model.span_boundary_logits(hidden_BLD, batch), batch)

    def _masked_lm_logits(
        self, model: EncoderWithHeads, hidden_BLD: jax.Array, batch: Batch
    ) -> jax.Array:
        """Returns the logits of the predictions, [B, P, V]."""
        positions = batch["masked_lm_positions"]
        if self.config.masked_next_token:
            positions = jnp.maximum(positions - 1, 0)
        # Logits of all positions would take 7 % more time and 0.85 GiB more on each chip (estimate
        # of the TPU compiler for BERT-base on a v5e-16).
        return model.masked_lm_logits(gather_positions(hidden_BLD, positions))

    def trained_model(self, params: Params, task: str | None) -> TrainedModel:
        """Returns the model; see `Objective`.

        A head that predicts the next token is left out, because filling masks and scoring texts
        use the predictions at the masked positions.
        """
        trained = super().trained_model(params, task)
        if not self.config.masked_next_token:
            return trained
        others = {name: part for name, part in trained.params.items() if name != "masked_lm"}
        return dataclasses.replace(trained, params=others)

    def head_flops(self, sizes: BatchSizes) -> float:
        """Returns the forward FLOPs of the heads whose losses have a weight."""
        config, model = self.config, self.config.model
        width, num_predictions = model.hidden_size, sizes.examples * sizes.predictions
        flops = 0.0
        if config.mlm_weight or config.diffusion_weight:
            flops += num_predictions * masked_lm_flops(model)
        num_pair_losses = bool(config.nsp_weight) + bool(config.sop_weight)
        flops += num_pair_losses * sizes.examples * (2 * width**2 + 4 * width)
        if config.sbo_weight:
            boundary_flops = 2 * width * (2 * width + SPAN_POSITION_EMBEDDING_SIZE)
            # Its second layer and its logits are those of masked LM.
            flops += num_predictions * (masked_lm_flops(model) + boundary_flops)
        return flops


def _denominator(name: str, batch: Batch) -> jax.Array:
    """Returns the divisor of the sum of a loss over the whole batch, a float32 scalar."""
    match name:
        case "mlm":
            # The divisors depend on the batch alone, not on a microbatch, so that the parts of an
            # accumulated gradient add up exactly.
            return jnp.maximum(jnp.sum(batch["masked_lm_weights"]), 1.0)
        case "diffusion":
            return jnp.maximum(jnp.sum(batch["num_maskable_tokens"].astype(jnp.float32)), 1.0)
        case "nsp" | "sop":
            return jnp.maximum(jnp.sum(_pair_weights(batch)), 1.0)
        case _:
            # SpanBERT's release adds 1, because a batch may have no target.
            return jnp.sum(batch["span_target_weights"]) + 1.0


def with_next_token_weights(batch: Batch) -> Batch:
    """Returns the batch in which a token without a token before it is not predicted."""
    positions, weights = batch["masked_lm_positions"], batch["masked_lm_weights"]
    has_previous = positions > 0
    if "packing_ids" in batch:
        packing_ids = batch["packing_ids"]
        previous = jnp.take_along_axis(packing_ids, jnp.maximum(positions - 1, 0), axis=1)
        has_previous &= jnp.take_along_axis(packing_ids, positions, axis=1) == previous
    return {**batch, "masked_lm_weights": jnp.where(has_previous, weights, 0.0)}


def masked_lm_loss(
    logits_BPV: jax.Array, batch: Batch, mask_token_id: int
) -> tuple[WeightedMean, Metrics]:
    """Computes the masked-LM loss: cross-entropy over all selected positions.

    The metrics are loss and accuracy over all of them, and over those where the input is the mask
    token ("masked"), the original token ("kept") or a random one ("random").
    """
    labels = batch["masked_lm_ids"]
    losses, correct = cross_entropy(logits_BPV, labels), is_correct(logits_BPV, labels)
    return _masked_lm_means(losses, correct, batch, batch["masked_lm_weights"], mask_token_id)


def _masked_lm_means(
    losses: jax.Array, correct: jax.Array, batch: Batch, weights: jax.Array, mask_token_id: int
) -> tuple[WeightedMean, Metrics]:
    """Returns the loss and the metrics of masked LM from the losses [B, P] of the predictions."""
    labels = batch["masked_lm_ids"]
    selected_input_ids = jnp.take_along_axis(
        batch["input_ids"], batch["masked_lm_positions"], axis=1
    )
    # Of the selected tokens 80 % show [MASK], 10 % a random token and 10 % themselves (Devlin et
    # al. 2019, 3.1). A random token may be the original one, which counts as kept.
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


# GPT-BERT's processes have sequences of one kind each, and the mean losses of the processes are
# averaged. So the tokens of left-to-right sequences, which are all predicted, count as much as
# their sequences, and not as much as there are of them.
def masked_and_causal_loss(
    logits_BPV: jax.Array, batch: Batch, loss_denominators: dict[str, jax.Array], mask_token_id: int
) -> tuple[jax.Array, Metrics]:
    """Computes the loss of a batch in which some sequences are read left to right (GPT-BERT).

    It is the mean loss of the masked tokens times the fraction of the masked sequences, plus the
    mean loss of the next tokens times the fraction of the others.
    """
    labels, weights = batch["masked_lm_ids"], batch["masked_lm_weights"]
    losses, correct = cross_entropy(logits_BPV, labels), is_correct(logits_BPV, labels)
    causal_weights = weights * batch["is_causal"].astype(jnp.float32)[:, None]
    masked, metrics = _masked_lm_means(
        losses, correct, batch, weights - causal_weights, mask_token_id
    )
    causal = weighted_mean(losses, causal_weights)
    metrics |= {"lm_loss": causal, "lm_accuracy": weighted_mean(correct, causal_weights)}
    loss = masked.total / loss_denominators["mlm"] + causal.total / loss_denominators["lm"]
    return loss, metrics


def _denominators_of_rows(batch: Batch) -> dict[str, jax.Array]:
    """Returns for either kind of sequence its predictions divided by its fraction of the batch."""
    is_causal = batch["is_causal"].astype(jnp.float32)
    weights, fraction = jnp.sum(batch["masked_lm_weights"], axis=1), jnp.mean(is_causal)
    return {
        name: jnp.maximum(jnp.sum(weights * of_kind), 1.0) / jnp.maximum(part, 1e-6)
        for name, of_kind, part in (
            ("mlm", 1.0 - is_causal, 1.0 - fraction),
            ("lm", is_causal, fraction),
        )
    }


def masked_diffusion_loss(logits_BPV: jax.Array, batch: Batch) -> tuple[WeightedMean, Metrics]:
    """Computes the loss of masked diffusion: cross-entropy / t over the tokens masked at rate t.

    It is divided by the number of all tokens that could have been masked, whether they were or not.
    Its expectation is an upper bound of -log p of a text, for each token (Sahoo et al. 2024,
    equation 10; Nie et al. 2025, equation 3). The accuracy is that of the masked tokens.
    """
    labels, is_used = batch["masked_lm_ids"], batch["masked_lm_weights"]
    rates = jnp.where(is_used > 0, batch["masking_rates"], 1.0)
    total = jnp.sum(cross_entropy(logits_BPV, labels) * is_used / rates)
    num_tokens = jnp.sum(batch["num_maskable_tokens"].astype(jnp.float32))
    loss = WeightedMean(total, num_tokens)
    accuracy = weighted_mean(is_correct(logits_BPV, labels), is_used)
    return loss, {"diffusion_loss": loss, "diffusion_accuracy": accuracy}


def next_sentence_loss(logits_BC: jax.Array, batch: Batch) -> tuple[WeightedMean, Metrics]:
    """Computes the next-sentence loss: cross-entropy of IsNext (0) and NotNext (1)."""
    return _pair_loss(logits_BC, batch["next_sentence_labels"], _pair_weights(batch), "nsp")


def sentence_order_loss(logits_BC: jax.Array, batch: Batch) -> tuple[WeightedMean, Metrics]:
    """Computes the sentence-order loss: cross-entropy of in order (0) and swapped (1)."""
    return _pair_loss(logits_BC, batch["sentence_order_labels"], _pair_weights(batch), "sop")


def _pair_weights(batch: Batch) -> jax.Array:
    """Returns [B] float32: 1 for a pair, 0 for a row of padding, as of removed documents."""
    return batch["attention_mask"][:, 0].astype(jnp.float32)


def _pair_loss(
    logits_BC: jax.Array, labels_B: jax.Array, weights_B: jax.Array, name: str
) -> tuple[WeightedMean, Metrics]:
    loss = weighted_mean(cross_entropy(logits_BC, labels_B), weights_B)
    correct = is_correct(logits_BC, labels_B)
    return loss, {f"{name}_loss": loss, f"{name}_accuracy": weighted_mean(correct, weights_B)}


# The targets are entries of `masked_lm_ids`; only their weights differ.
# SpanBERT's code also clamps attention scores to 10,000, because it trains in float16; float32 and
# bfloat16 do not overflow there.
def span_boundary_loss(logits_BPV: jax.Array, batch: Batch) -> tuple[WeightedMean, Metrics]:
    """Computes the span boundary loss: cross-entropy of the tokens of spans with a boundary."""
    labels, weights = batch["masked_lm_ids"], batch["span_target_weights"]
    loss = weighted_mean(cross_entropy(logits_BPV, labels), weights)
    correct = is_correct(logits_BPV, labels)
    return loss, {"sbo_loss": loss, "sbo_accuracy": weighted_mean(correct, weights)}
