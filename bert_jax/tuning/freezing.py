"""Freezes parameters of an objective, so that no gradient is computed for them."""

from typing import Any

import jax

from bert_jax.functional import Params
from bert_jax.objectives.base import Batch, LossOutput, Objective
from bert_jax.params import paths


class FrozenParams:
    """Wraps an objective; parameters that match one of `patterns` get no gradient."""

    def __init__(self, objective: Objective, patterns: tuple[str, ...]):
        self.config = objective.config
        self._objective, self._patterns = objective, patterns
        self.abstract, self.init, self.batch_fields = (
            objective.abstract,
            objective.init,
            objective.batch_fields,
        )
        self.loss_denominators = objective.loss_denominators

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Returns the losses of the wrapped objective; frozen parameters get no gradient."""

        def stop_gradient_if_frozen(path: str, leaf: Any) -> Any:
            is_frozen = any(paths.matches(pattern, path) for pattern in self._patterns)
            return jax.lax.stop_gradient(leaf) if is_frozen else leaf

        stopped_params = paths.map_with_path(stop_gradient_if_frozen, params)
        return self._objective.compute_loss(stopped_params, batch, loss_denominators, dropout_key)
