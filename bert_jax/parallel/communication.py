"""A program whose matrices go between devices as the mesh says: gathered, and in which dtype.

Parameters are kept in float32, cut along the mesh's axis fsdp. They are used whole: left to choose,
XLA may cut activations by width like the parameters, and then every device computes all rows. Told
that they are whole where they are used, it gathers them there, sums their gradients, and each
device takes of the sums what it keeps. (Asked to scatter the sums, XLA's TPU compiler turns each
product into a loop over sixteen slices too narrow for the matrix unit.)

With `exchange` bfloat16 a matrix is rounded before it is gathered, as products would round it
anyway, so its gradient comes in bfloat16 too and is summed over the devices as such (as in T5X,
Roberts et al. 2022, and most that train on TPUs). The optimizer sees float32.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.functional import Params
from bert_jax.objectives.base import Batch, LossOutput, Objective
from bert_jax.parallel.config import CommunicationDtype
from bert_jax.params import paths

MATRIX_PATTERNS = ("encoder/**", "masked_lm/**")
"""What `exchange` is for; heads of tasks are small, and computed in float32."""


class GatheredParams:
    """Another program, whose parameters are whole, and rounded if asked, when they are used.

    `abstract` are its parameters with their shardings; a cut along tensor stays.
    """

    def __init__(
        self, objective: Objective, abstract: Params, communication_dtype: CommunicationDtype
    ):
        self.config = objective.config
        self._objective = objective
        self.abstract, self.init, self.batch_fields = (
            objective.abstract,
            objective.init,
            objective.batch_fields,
        )
        self.loss_denominators = objective.loss_denominators
        self._gathered_shardings = jax.tree.map(_replicated_over_fsdp, abstract)
        self._communication_dtype = jnp.dtype(communication_dtype)

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """The other program's losses."""
        cast_params = paths.map_with_path(self._cast_matrix, params)
        gathered = jax.tree.map(
            jax.lax.with_sharding_constraint, cast_params, self._gathered_shardings
        )
        return self._objective.compute_loss(gathered, batch, loss_denominators, dropout_key)

    def _cast_matrix(self, path: str, leaf: Any) -> Any:
        is_matrix = leaf.ndim > 1 and any(
            paths.matches(pattern, path) for pattern in MATRIX_PATTERNS
        )
        return leaf.astype(self._communication_dtype) if is_matrix else leaf


def _replicated_over_fsdp(leaf: Any) -> NamedSharding:
    spec = PartitionSpec(*(None if axis == "fsdp" else axis for axis in leaf.sharding.spec))
    return NamedSharding(leaf.sharding.mesh, spec)
