"""Rows of a table by their ids, with a gradient that forgets nothing.

Autodiff adds the gradients of a table's row in the dtype of the table: a frequent word's row, to
which thousands are added, stands still in bfloat16 as soon as it is 256 times what comes. Here they
are added in float32, on each device for its own rows of the batch, and only the sum goes between
devices in the table's dtype.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bert_jax.batch import BATCH_AXES


@jax.custom_vjp
def embedding_lookup(table_VD: jax.Array, ids_BL: jax.Array) -> jax.Array:
    """float32 [B, L, D] from a table [V, D] of any float dtype and int32 ids.

    An id beyond the table gives not-a-number, and its gradient goes nowhere.
    """
    return jnp.take(table_VD, ids_BL, axis=0).astype(jnp.float32)


def _fwd(table: jax.Array, ids: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return embedding_lookup(table, ids), (table, ids)


def _bwd(residuals: tuple[jax.Array, jax.Array], grad: jax.Array) -> tuple[jax.Array, Any]:
    table, ids = residuals
    mesh = jax.sharding.get_abstract_mesh()

    def scatter_add(ids: jax.Array, grad: jax.Array) -> jax.Array:
        total = jnp.zeros(table.shape, jnp.float32).at[ids].add(grad)
        total = total.astype(table.dtype)
        return total if mesh.empty else jax.lax.psum(total, BATCH_AXES)

    if mesh.empty:  # one device
        return scatter_add(ids, grad), None
    batch_spec = PartitionSpec(BATCH_AXES)
    return jax.shard_map(scatter_add, in_specs=(batch_spec, batch_spec), out_specs=PartitionSpec())(
        ids, grad
    ), None


embedding_lookup.defvjp(_fwd, _bwd)
