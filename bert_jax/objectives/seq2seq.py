"""Computes the loss of encoder-decoders: the cross-entropy of each target token.

Used for denoising (Raffel et al. 2020, section 3.1; Lewis et al. 2020) and for text to text.
"""

import jax
import jax.numpy as jnp

from bert_jax.batch import (
    DECODER_TARGET_FIELDS,
    ENCODER_DECODER_FIELDS,
    encoder_decoder_inputs,
)
from bert_jax.config.objectives import Seq2Seq
from bert_jax.losses import cross_entropy, is_correct, padding_fraction, weighted_mean
from bert_jax.models.model import build_encoder_decoder_network
from bert_jax.objectives.base import Batch, BatchSizes, LossOutput, Objective
from bert_jax.params.functional import Params


class Seq2SeqObjective(Objective):
    """Implements the `Objective` of a `Seq2Seq` config.

    Attributes:
      network: the encoder-decoder.
    """

    makes_encoder, starts_from = False, "encoder-decoder"

    def __init__(self, config: Seq2Seq):
        self.config = config
        self.network = build_encoder_decoder_network(config.model, compute=config.compute)

    def batch_fields(self) -> tuple[str, ...]:
        """Returns the fields of the source and the targets, from which decoder inputs are made."""
        source = tuple(name for name in ENCODER_DECODER_FIELDS if name != "decoder_input_ids")
        return source + DECODER_TARGET_FIELDS

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of target tokens."""
        return {"seq2seq": jnp.maximum(jnp.sum(batch["decoder_target_weights"]), 1.0)}

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes the mean cross-entropy of the target tokens, and their accuracy."""
        model = self.network.merge(params)
        targets, weights = batch["decoder_target_ids"], batch["decoder_target_weights"]
        decoder_input_ids = shift_right(
            targets, self.config.model.decoder_start_token_id, batch.get("decoder_packing_ids")
        )
        inputs = encoder_decoder_inputs({**batch, "decoder_input_ids": decoder_input_ids})
        hidden = model(**inputs, dropout_key=dropout_key).last_hidden_state
        logits = model.logits(hidden)
        losses = cross_entropy(logits, targets)
        metrics = {
            "seq2seq_loss": weighted_mean(losses, weights),
            "token_accuracy": weighted_mean(is_correct(logits, targets), weights),
            "padding_fraction": padding_fraction(batch),
        }
        # After the metrics, so that a reported loss does not depend on smoothing and z-loss.
        losses = self._regularized(losses, logits)
        total = weighted_mean(losses, weights).total
        return LossOutput(total / loss_denominators["seq2seq"], metrics)

    def encoder_flops(self, sizes: BatchSizes) -> float:
        """Returns 0: no adaptation method changes an encoder-decoder (`head_flops`)."""
        del sizes
        return 0.0

    def head_flops(self, sizes: BatchSizes) -> float:
        """Returns the forward FLOPs of encoder, decoder and logits."""
        return sizes.examples * self.config.model.forward_flops(sizes.length, sizes.target_length)

    def summed_vectors(self, sizes: BatchSizes) -> int:
        """Returns the hidden vectors that are summed over devices; see `Objective`.

        A decoder layer has a third part, the attention to the sources, and the gradients of the
        sources from all decoder layers are summed once.
        """
        model = self.config.model
        sources = (4 * model.num_encoder_layers + 1) * sizes.length
        return sizes.examples * (sources + 6 * model.num_decoder_layers * sizes.target_length)

    def _regularized(self, losses: jax.Array, logits: jax.Array) -> jax.Array:
        """Adds label smoothing and the z-loss to the cross-entropy of each target, [B, T]."""
        config, logits = self.config, logits.astype(jnp.float32)
        if not (config.label_smoothing or config.z_loss):
            return losses
        log_z = jax.nn.logsumexp(logits, axis=-1)
        if config.label_smoothing:
            # The mean of the cross-entropies of all tokens, from log Z and the logits, without
            # one-hot labels of the size of the logits.
            uniform = log_z - jnp.mean(logits, axis=-1)
            losses = (1 - config.label_smoothing) * losses + config.label_smoothing * uniform
        return losses + config.z_loss * jnp.square(log_z)


# Here and not in the loader, because the start token belongs to the model.
def shift_right(
    target_ids: jax.Array, start_id: int, packing_ids: jax.Array | None = None
) -> jax.Array:
    """Returns decoder inputs [B, T]: the start token, then all targets but the last.

    Args:
      packing_ids: int32 [B, T], which packed target a token belongs to; each begins with the start
        token. None if rows are not packed.
    """

    def shift(array: jax.Array, first: int) -> jax.Array:
        return jnp.pad(array[:, :-1], ((0, 0), (1, 0)), constant_values=first)

    shifted = shift(target_ids, start_id)
    if packing_ids is None:
        return shifted
    # -1 is the id of no target, so the first position always differs and gets the start token.
    return jnp.where(packing_ids == shift(packing_ids, -1), shifted, start_id)
