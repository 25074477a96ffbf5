"""Defines the interface between an objective and the training loop."""

from typing import Any, NamedTuple, Protocol

import jax

from bert_jax.losses import Batch, WeightedMean
from bert_jax.params.functional import Params


class LossOutput(NamedTuple):
    """Holds the loss of a microbatch, to be added to the losses of the batch's other microbatches.

    Attributes:
      loss: float32 scalar. The losses of all microbatches add up to the loss of the batch exactly,
        because each is divided by the denominators of the whole batch.
      metrics: sums with weights, to be added first and then divided.
    """

    loss: jax.Array
    metrics: dict[str, WeightedMean]


class Objective(Protocol):
    """Computes a loss from parameters and a batch; it owns the network."""

    config: Any

    def abstract(self) -> Params:
        """Returns the parameters as shapes and dtypes."""
        ...

    def init(self, key: jax.Array) -> Params:
        """Returns newly initialized parameters, float32."""
        ...

    def batch_fields(self) -> tuple[str, ...]:
        """Returns the batch fields that the loss needs; see `bert_jax.batch`."""
        ...

    # Known before the loss: every microbatch divides its sum by the count of the whole batch, so
    # that the parts add up exactly, even for two losses with different counts.
    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the divisor of each loss's sum: float32 scalars that depend on the batch only."""
        ...

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes the loss of a batch, or of a part of the batch of `loss_denominators`."""
        ...


class MapParamsObjective:
    """Wraps an objective, whose loss is computed from `map_params(params)`; for subclasses."""

    def __init__(self, objective: Objective):
        self.config, self._objective = objective.config, objective
        self.abstract, self.init = objective.abstract, objective.init
        self.batch_fields = objective.batch_fields
        self.loss_denominators = objective.loss_denominators

    def map_params(self, params: Params) -> Params:
        """Returns the parameters to compute the loss from; traced under `jax.grad`."""
        raise NotImplementedError

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes the loss of the wrapped objective."""
        return self._objective.compute_loss(
            self.map_params(params), batch, loss_denominators, dropout_key
        )
