"""Computes MPNet's loss: masked and permuted language modeling (Song et al. 2020, section 2.3).

The batches are the batches of masked LM. The predictions of a sequence have a random order: the
order of their `sampling_seeds`, so that it is a function of (seed, epoch, example, position) like
the masks. Each prediction depends on the text that is not predicted, on the predicted tokens before
it in that order, and on the positions of all others; see `models/mpnet/model.py`.
"""

import jax
import jax.numpy as jnp

from bert_jax.batch import ENCODER_FIELDS, MASKED_LM_FIELDS, SAMPLING_FIELDS
from bert_jax.config.objectives import MaskedPermutedLM
from bert_jax.losses import padding_fraction
from bert_jax.models.model import build_network
from bert_jax.models.mpnet.model import MPNetEncoder, Predictions, permutation_ranks
from bert_jax.objectives.base import Batch, BatchSizes, LossOutput, Objective, masked_lm_flops
from bert_jax.objectives.pretraining import masked_lm_loss
from bert_jax.objectives.replaced_tokens import replace_tokens
from bert_jax.params.functional import Params


# Differs from the original code: it predicts any 15 % of the positions of a batch, padding and
# special tokens included, attends to padding, and cuts the word that does not fit. As in its
# defaults, predictions are not weighted by their place in the order, and the content stream has no
# loss of its own.
class MaskedPermutedLMObjective(Objective):
    """Implements the `Objective` of a `MaskedPermutedLM` config.

    Attributes:
      network: the encoder with the masked-LM head, which reads the query stream.
    """

    shown_metrics = ("mlm_loss", "mlm_accuracy", "loss")

    def __init__(self, config: MaskedPermutedLM):
        self.config = config
        heads = config.model.pretraining_heads
        self.network = build_network(config.model, heads, compute=config.compute)

    def batch_fields(self) -> tuple[str, ...]:
        """Returns the fields of the encoder, of masked LM and of the order of predictions."""
        return ENCODER_FIELDS + MASKED_LM_FIELDS + SAMPLING_FIELDS

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of predictions."""
        return {"mlm": jnp.maximum(jnp.sum(batch["masked_lm_weights"]), 1.0)}

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes the mean cross-entropy of the predictions, with the metrics of masked LM."""
        model = self.network.merge(params)
        encoder = model.encoder
        assert isinstance(encoder, MPNetEncoder)
        original_ids, _ = replace_tokens(batch, batch["masked_lm_ids"])
        hidden = encoder.encode_predictions(
            original_ids,
            batch["attention_mask"],
            predictions_of(batch),
            position_ids=batch.get("position_ids"),
            packing_ids=batch.get("packing_ids"),
            dropout_key=dropout_key,
        )
        logits = model.masked_lm_logits(hidden)
        loss, metrics = masked_lm_loss(logits, batch, self.config.mask_token_id)
        metrics["padding_fraction"] = padding_fraction(batch)
        return LossOutput(loss.total / loss_denominators["mlm"], metrics)

    def encoder_flops(self, sizes: BatchSizes) -> float:
        """Returns the forward FLOPs of both streams.

        The content stream has one mask more for each prediction, the query stream another.
        """
        num_keys = sizes.length + sizes.predictions
        num_queries = num_keys + sizes.predictions
        return sizes.sequences * num_queries * self.config.model.encoder_flops(num_keys)

    def head_flops(self, sizes: BatchSizes) -> float:
        """Returns the forward FLOPs of the masked-LM head."""
        return sizes.examples * sizes.predictions * masked_lm_flops(self.config.model)


def predictions_of(batch: Batch) -> Predictions:
    """Returns the predictions of a batch of masked LM in the order of their seeds."""
    positions, is_used = batch["masked_lm_positions"], batch["masked_lm_weights"] > 0
    return Predictions(
        positions=positions,
        input_ids=jnp.take_along_axis(batch["input_ids"], positions, axis=1),
        ranks=permutation_ranks(batch["sampling_seeds"], is_used),
        is_used=is_used,
    )
