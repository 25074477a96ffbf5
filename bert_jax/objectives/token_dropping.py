"""Drops unimportant tokens from the middle layers of pretraining (Hou et al. 2022, section 3).

A token is important if its id is hard to predict: the importance of an id is a running average of
its masked-LM losses, a vector over the vocabulary. In each sequence the tokens with the largest
importance are read by all layers, the others skip the middle layers, and the last layer reads all.
[MASK] and the ids of the allow list always go first, padding last. Among equals the first come
first, so that every sequence has the same number of selected tokens, as a static shape must.

The running average is a parameter that the optimizer cannot change, because its gradient is 0, and
that the objective updates after each step. So checkpoints, shardings and microbatches treat it as
any other parameter, and a resumed run has the same one, bit for bit.

Differences from the authors' code (TF Model Garden, `official/projects/token_dropping`): an id that
a batch predicts several times moves by the mean of its losses, where one of the losses wins there;
and predictions of weight 0 are left out.
"""

import jax
import jax.numpy as jnp

from bert_jax.config.objectives import Pretraining, TokenDropping
from bert_jax.losses import WeightedMean, cross_entropy
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.layers.stack import TokenSelection
from bert_jax.objectives.base import Batch, BatchSizes, LossOutput
from bert_jax.objectives.pretraining import Metrics, PretrainingObjective
from bert_jax.params.functional import Params
from bert_jax.params.paths import STATISTICS

_TOKEN_LOSSES = "token_losses"


class TokenDroppingObjective(PretrainingObjective):
    """Implements the `Objective` of a `Pretraining` config with `token_dropping`.

    Without a dropout key, as in evaluation, all layers read all tokens.
    """

    def __init__(self, config: Pretraining):
        super().__init__(config)
        assert config.token_dropping is not None
        self.dropping: TokenDropping = config.token_dropping
        self.middle_layers = self.dropping.middle_layers(config.model.num_applied_layers)

    def abstract(self) -> Params:
        """Returns the parameters of the network and the running average as shapes and dtypes."""
        average = jax.ShapeDtypeStruct((self.config.model.vocab_size,), jnp.float32)
        return {**super().abstract(), STATISTICS: {_TOKEN_LOSSES: average}}

    def init(self, key: jax.Array) -> Params:
        """Returns random parameters, and the running average before the first update."""
        average = jnp.full(self.config.model.vocab_size, self.dropping.initial_loss, jnp.float32)
        return {**super().init(key), STATISTICS: {_TOKEN_LOSSES: average}}

    def pretrained_path(self, path: str, head: TaskHead | None) -> str | None:
        """Returns the same path, and None for the running average, which a model does not have."""
        return None if path.startswith(f"{STATISTICS}/") else super().pretrained_path(path, head)

    def select_tokens(self, params: Params, batch: Batch) -> TokenSelection:
        """Returns the most important tokens of each sequence."""
        token_losses = jax.lax.stop_gradient(params[STATISTICS][_TOKEN_LOSSES])
        positions = important_positions(
            token_losses[batch["input_ids"]], batch, self.config.mask_token_id, self.dropping
        )
        return TokenSelection(positions, self.middle_layers.start)

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes the weighted sum of the losses, and the losses of each id."""
        loss, metrics, _ = super().compute_loss(params, batch, loss_denominators, dropout_key)
        others = {name: mean for name, mean in metrics.items() if name != _TOKEN_LOSSES}
        return LossOutput(loss, others, {_TOKEN_LOSSES: metrics[_TOKEN_LOSSES]})

    def token_metrics(self, logits_BPV: jax.Array, batch: Batch) -> Metrics:
        """Returns the losses of each id, which `compute_loss` takes out of the metrics again."""
        return {_TOKEN_LOSSES: losses_by_id(jax.lax.stop_gradient(logits_BPV), batch)}

    def update_statistics(self, params: Params, statistics: dict[str, WeightedMean]) -> Params:
        """Returns the parameters with the running average after a batch."""
        average = updated_average(
            params[STATISTICS][_TOKEN_LOSSES], statistics[_TOKEN_LOSSES], self.dropping.beta
        )
        return {**params, STATISTICS: {_TOKEN_LOSSES: average}}

    def encoder_flops(self, sizes: BatchSizes) -> float:
        """Returns the forward FLOPs of the encoder, less those of the dropped tokens."""
        model = self.config.model

        def flops(length: int) -> float:
            keys = model.attended_keys(length)
            of_token = (
                2 * model.kernel_params_per_layer + 4 * model.hidden_size * keys[layer]
                for layer in self.middle_layers
            )
            return length * sum(of_token)

        dropped = flops(sizes.length) - flops(num_selected(sizes.length, self.dropping))
        return super().encoder_flops(sizes) - sizes.sequences * dropped


def num_selected(length: int, dropping: TokenDropping) -> int:
    """Returns how many tokens of a sequence the middle layers read, K."""
    return max(1, round(dropping.keep_fraction * length))


def important_positions(
    importance_BL: jax.Array, batch: Batch, mask_token_id: int, dropping: TokenDropping
) -> jax.Array:
    """Returns the positions of the K most important tokens, int32 [B, K], in ascending order."""
    input_ids = batch["input_ids"]
    always = jnp.isin(input_ids, jnp.array((mask_token_id, *dropping.allow_list), jnp.int32))
    importance_BL = jnp.where(always, jnp.inf, importance_BL)
    importance_BL = jnp.where(batch["attention_mask"] > 0, importance_BL, -jnp.inf)
    # Of equal values, `top_k` returns those of lower positions first.
    _, positions = jax.lax.top_k(importance_BL, num_selected(input_ids.shape[1], dropping))
    return jnp.sort(positions, axis=1)


def losses_by_id(logits_BPV: jax.Array, batch: Batch) -> WeightedMean:
    """Returns the sum of the losses of each predicted id and the number of them, float32 [V]."""
    labels, weights = batch["masked_lm_ids"], batch["masked_lm_weights"]
    zeros = jnp.zeros(logits_BPV.shape[-1], jnp.float32)
    losses = cross_entropy(logits_BPV, labels) * weights
    return WeightedMean(zeros.at[labels].add(losses), zeros.at[labels].add(weights))


def updated_average(average_V: jax.Array, losses: WeightedMean, beta: float) -> jax.Array:
    """Moves the average of the ids that were predicted by 1 - beta towards their mean loss."""
    mean = losses.total / jnp.maximum(losses.weight, 1.0)
    return jnp.where(losses.weight > 0, beta * average_V + (1 - beta) * mean, average_V)
