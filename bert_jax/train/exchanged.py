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

from bert_jax import paths
from bert_jax.nn import Params
from bert_jax.parallel.config import Exchange
from bert_jax.programs.program import Batch, Losses, Program

LARGE = ("encoder/**", "masked_lm/**")
"""What `exchange` is for; heads of tasks are small, and computed in float32."""


class Exchanged:
    """Another program, whose parameters are whole, and rounded if asked, when they are used.

    `abstract` are its parameters with their shardings; a cut along tensor stays.
    """

    def __init__(self, program: Program, abstract: Params, exchange: Exchange):
        self.config = program.config
        self._program = program
        self.abstract, self.init, self.fields = program.abstract, program.init, program.fields
        self.normalisers = program.normalisers
        self._whole = jax.tree.map(_whole, abstract)
        self._dtype = jnp.dtype(exchange)

    def losses(
        self,
        params: Params,
        batch: Batch,
        normalisers: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> Losses:
        """The other program's losses."""
        rounded = paths.map_with_path(self._round, params)
        gathered = jax.tree.map(jax.lax.with_sharding_constraint, rounded, self._whole)
        return self._program.losses(gathered, batch, normalisers, dropout_key)

    def _round(self, path: str, leaf: Any) -> Any:
        matrix = leaf.ndim > 1 and any(paths.matches(pattern, path) for pattern in LARGE)
        return leaf.astype(self._dtype) if matrix else leaf


def _whole(leaf: Any) -> NamedSharding:
    spec = PartitionSpec(*(None if axis == "fsdp" else axis for axis in leaf.sharding.spec))
    return NamedSharding(leaf.sharding.mesh, spec)
