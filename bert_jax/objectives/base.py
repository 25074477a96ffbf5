"""What the training loop needs to know of a program, and nothing more."""

from typing import Any, NamedTuple, Protocol

import jax

from bert_jax.functional import Params
from bert_jax.objectives.weighted_mean import WeightedMean

Batch = dict[str, jax.Array]


class LossOutput(NamedTuple):
    """A (micro)batch's share of the loss, ready to be added to other shares.

    Attributes:
      loss: float32 scalar; shares of all microbatches add up to the batch's loss exactly, because
        each was divided by the whole batch's normaliser.
      metrics: sums with weights, to be added and then divided.
    """

    loss: jax.Array
    metrics: dict[str, WeightedMean]


class Objective(Protocol):
    """A network with its objectives."""

    config: Any

    def abstract(self) -> Params:
        """Parameters as shapes and dtypes."""
        ...

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters, float32."""
        ...

    def batch_fields(self) -> tuple[str, ...]:
        """The batch fields that the objectives need; see `bert_jax.batch`."""
        ...

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """What each objective's sum is divided by: float32 scalars of the batch alone."""
        ...

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """The losses of `batch`, or of a part of the batch that `normalisers` were made from."""
        ...
