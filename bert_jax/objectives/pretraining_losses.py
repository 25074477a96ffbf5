"""Computes the losses of pretraining as pure functions of logits and batch fields.

Each returns its loss and its metrics as `WeightedMean`s. Sources: Devlin et al. 2019, section 3.1
(masked LM, next sentence) and section 5.1 (the left-to-right ablation).
"""

import jax
import jax.numpy as jnp

from bert_jax.objectives.weighted_mean import WeightedMean, cross_entropy, is_correct, weighted_mean

Batch = dict[str, jax.Array]
Metrics = dict[str, WeightedMean]


def masked_lm(
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


def next_sentence(logits_BC: jax.Array, batch: Batch) -> tuple[WeightedMean, Metrics]:
    """Computes the next-sentence loss: cross-entropy of IsNext (0) and NotNext (1)."""
    labels = batch["next_sentence_labels"]
    ones = jnp.ones(labels.shape, jnp.float32)
    loss = weighted_mean(cross_entropy(logits_BC, labels), ones)
    correct = is_correct(logits_BC, labels)
    return loss, {"nsp_loss": loss, "nsp_accuracy": weighted_mean(correct, ones)}


def next_token(logits_BLV: jax.Array, batch: Batch) -> tuple[WeightedMean, Metrics]:
    """Computes the cross-entropy of each next token, for logits at positions 0 to L-2."""
    labels, weights = batch["input_ids"][:, 1:], next_token_weights(batch)
    losses = cross_entropy(logits_BLV, labels)
    correct = is_correct(logits_BLV, labels)
    loss = weighted_mean(losses, weights)
    return loss, {"lm_loss": loss, "lm_accuracy": weighted_mean(correct, weights)}


def next_token_weights(batch: Batch) -> jax.Array:
    """Returns float32 [B, L-1]: 1 where the next token is real and of the same packed example."""
    weights = batch["attention_mask"][:, 1:].astype(jnp.float32)
    if "packing_ids" in batch:
        packing_ids = batch["packing_ids"]
        weights *= (packing_ids[:, 1:] == packing_ids[:, :-1]).astype(jnp.float32)
    return weights


def padding_fraction(batch: Batch) -> WeightedMean:
    """Returns the fraction of positions that are padding."""
    padding = 1 - batch["attention_mask"]
    return weighted_mean(padding, jnp.ones(padding.shape, jnp.float32))
