"""The objectives of BERT's pretraining, as pure functions of logits and batch fields.

Each returns its loss and its metrics as `Mean`s. Sources: Devlin et al. 2019, section 3.1 (masked
LM, next sentence) and section 5.1 (the left-to-right ablation).
"""

import jax
import jax.numpy as jnp

from bert_jax.objectives.mean import Mean, cross_entropy, hits, mean

Batch = dict[str, jax.Array]
Metrics = dict[str, Mean]


def masked_lm(logits_BPV: jax.Array, batch: Batch, mask_token_id: int) -> tuple[Mean, Metrics]:
    """Cross-entropy over every selected position, whether masked, replaced or kept.

    Metrics: loss and accuracy over all selected positions, and split by what the model saw there.
    """
    labels, weights = batch["masked_lm_ids"], batch["masked_lm_weights"]
    losses = cross_entropy(logits_BPV, labels)
    correct = hits(logits_BPV, labels)
    seen = jnp.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], axis=1)
    split = {
        "masked": seen == mask_token_id,
        "kept": seen == labels,
        "random": (seen != mask_token_id) & (seen != labels),
    }
    loss = mean(losses, weights)
    metrics = {"mlm_loss": loss, "mlm_accuracy": mean(correct, weights)}
    for name, chosen in split.items():
        shown = jnp.where(chosen, weights, 0.0)
        metrics[f"mlm_loss_{name}"] = mean(losses, shown)
        metrics[f"mlm_accuracy_{name}"] = mean(correct, shown)
    return loss, metrics


def next_sentence(logits_BC: jax.Array, batch: Batch) -> tuple[Mean, Metrics]:
    """Cross-entropy of IsNext (0) against NotNext (1); each row weighs 1."""
    labels = batch["next_sentence_labels"]
    ones = jnp.ones(labels.shape, jnp.float32)
    loss = mean(cross_entropy(logits_BC, labels), ones)
    correct = hits(logits_BC, labels)
    return loss, {"nsp_loss": loss, "nsp_accuracy": mean(correct, ones)}


def next_token(logits_BLV: jax.Array, batch: Batch) -> tuple[Mean, Metrics]:
    """Cross-entropy of each next token of the same example, for logits at positions 0 .. L-2."""
    labels, weights = batch["input_ids"][:, 1:], next_token_weights(batch)
    losses = cross_entropy(logits_BLV, labels)
    correct = hits(logits_BLV, labels)
    loss = mean(losses, weights)
    return loss, {"lm_loss": loss, "lm_accuracy": mean(correct, weights)}


def next_token_weights(batch: Batch) -> jax.Array:
    """float32 [B, L-1]: 1 where the next token is real and of the same packed example."""
    weights = batch["attention_mask"][:, 1:].astype(jnp.float32)
    if "packing_ids" in batch:
        ids = batch["packing_ids"]
        weights *= (ids[:, 1:] == ids[:, :-1]).astype(jnp.float32)
    return weights


def padding_share(batch: Batch) -> Mean:
    """The share of positions that hold padding."""
    padding = 1 - batch["attention_mask"]
    return mean(padding, jnp.ones(padding.shape, jnp.float32))
