"""Gathers sharded parameters before they are used, in the dtype chosen for communication.

Parameters are stored in float32, split over the mesh axis fsdp, and are used whole. Without a
constraint XLA may split activations by width as it splits the parameters, and then every device
computes all examples. With the constraint it gathers the parameters where they are used and sums
their gradients, of which each device takes its part. (Asked to scatter the sums, XLA's TPU compiler
turns each product into a loop over sixteen slices, which are too narrow for the matrix unit.)

With `communication_dtype` bfloat16 a matrix is rounded before it is gathered. Products would round
it anyway, but its gradient is then summed over the devices in bfloat16, too, as in T5X (Roberts et
al. 2022). The optimizer gets float32.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.config.train import CommunicationDtype
from bert_jax.objectives.base import MapParamsObjective, Objective
from bert_jax.params import paths
from bert_jax.params.functional import Params

MATRIX_PATTERNS = ("encoder/**", "masked_lm/**")
"""The matrices that are rounded; task heads are small and are computed in float32."""


class GatherParamsObjective(MapParamsObjective):
    """Wraps an objective so that its parameters are gathered, and rounded if asked, before use.

    `abstract` has the parameters with their shardings; a split over the axis tensor stays.
    """

    def __init__(
        self, objective: Objective, abstract: Params, communication_dtype: CommunicationDtype
    ):
        super().__init__(objective)
        self._gathered_shardings = jax.tree.map(_replicated_over_fsdp, abstract)
        self._communication_dtype = jnp.dtype(communication_dtype)

    def map_params(self, params: Params) -> Params:
        """Rounds matrices to the communication dtype and gathers all parameters over fsdp."""
        cast_params = paths.map_with_path(self._cast_matrix, params)
        return jax.tree.map(jax.lax.with_sharding_constraint, cast_params, self._gathered_shardings)

    def _cast_matrix(self, path: str, leaf: Any) -> Any:
        is_matrix = leaf.ndim > 1 and paths.matches_any(MATRIX_PATTERNS, path)
        return leaf.astype(self._communication_dtype) if is_matrix else leaf


def _replicated_over_fsdp(leaf: Any) -> NamedSharding:
    spec = PartitionSpec(*(None if axis == "fsdp" else axis for axis in leaf.sharding.spec))
    return NamedSharding(leaf.sharding.mesh, spec)
