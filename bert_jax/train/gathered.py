"""A program whose sharded parameters are gathered before they are used: fsdp, spelled out for XLA.

Parameters and rows both lie over the mesh's axis fsdp. Left to choose, XLA may cut activations by
width like the parameters, and then every device computes all rows. Told that parameters are whole
where they are used, it gathers them there, and scatters their gradients to where they are kept.
"""

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.nn import Params
from bert_jax.programs.program import Batch, Losses, Program


class Gathered:
    """Another program, whose parameters are not cut along fsdp when they are used.

    `abstract` are its parameters with their shardings; a cut along tensor stays.
    """

    def __init__(self, program: Program, abstract: Params):
        self.config = program.config
        self._program = program
        self.abstract, self.init, self.fields = program.abstract, program.init, program.fields
        self.normalisers = program.normalisers
        self._whole = jax.tree.map(_whole, abstract)

    def losses(
        self,
        params: Params,
        batch: Batch,
        normalisers: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> Losses:
        """The other program's losses."""
        gathered = jax.tree.map(jax.lax.with_sharding_constraint, params, self._whole)
        return self._program.losses(gathered, batch, normalisers, dropout_key)


def _whole(leaf: Any) -> NamedSharding:
    spec = PartitionSpec(*(None if axis == "fsdp" else axis for axis in leaf.sharding.spec))
    return NamedSharding(leaf.sharding.mesh, spec)
