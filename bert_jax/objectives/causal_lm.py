"""Computes the loss of causal LM: causal mask, next token.

It is the left-to-right ablation of BERT (Devlin et al. 2019, section 5.1), and a phase of
pretraining before masked LM (Gisserot-Boukhlef et al. 2025).
"""

import jax
import jax.numpy as jnp

from bert_jax.batch import ENCODER_FIELDS
from bert_jax.config.objectives import CausalLM
from bert_jax.losses import WeightedMean, cross_entropy, is_correct, padding_fraction, weighted_mean
from bert_jax.models.model import EncoderWithHeads, build_network
from bert_jax.objectives.base import Batch, BatchSizes, LossOutput, Objective, masked_lm_flops
from bert_jax.params.functional import Network, Params


class CausalLMObjective(Objective):
    """Implements the `Objective` of a `CausalLM` config.

    Attributes:
      network: the encoder with the LM head, which reads every position; in a phase of a run with
        masked LM, the network of that run, whose other heads are not computed.
    """

    shown_metrics = ("lm_loss", "lm_accuracy", "loss")

    makes_encoder = False

    def __init__(self, config: CausalLM, network: Network[EncoderWithHeads] | None = None):
        self.config = config
        self.network = network or build_network(
            config.model, ("masked_lm",), compute=config.compute
        )

    def batch_fields(self) -> tuple[str, ...]:
        """Returns the fields of the encoder: the labels are the tokens themselves."""
        return ENCODER_FIELDS

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of predicted tokens."""
        return {"lm": jnp.maximum(jnp.sum(next_token_weights(batch)), 1.0)}

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes the mean cross-entropy of the next token."""
        model = self.network.merge(params)
        hidden = model.encode(batch, dropout_key, causal=True).last_hidden_state
        logits = model.masked_lm_logits(hidden[:, :-1])  # the last token has no next one
        weighted_loss, metrics = next_token_loss(logits, batch)
        metrics["padding_fraction"] = padding_fraction(batch)
        return LossOutput(weighted_loss.total / loss_denominators["lm"], metrics)

    def head_flops(self, sizes: BatchSizes) -> float:
        """Returns the forward FLOPs of the LM head at every position but the last."""
        return sizes.examples * (sizes.length - 1) * masked_lm_flops(self.config.model)


def next_token_loss(
    logits_BLV: jax.Array, batch: Batch
) -> tuple[WeightedMean, dict[str, WeightedMean]]:
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
        # The first token of a packed example cannot be predicted from the example before it.
        weights *= (packing_ids[:, 1:] == packing_ids[:, :-1]).astype(jnp.float32)
    return weights
