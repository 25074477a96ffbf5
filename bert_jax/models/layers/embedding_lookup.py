"""Looks up rows of an embedding table, with gradients that are summed in float32.

Autodiff would sum the gradients of a row in the dtype of the table. In bfloat16 the row of a
frequent token stops changing once its sum is 256 times the next term. Here each device sums in
float32 over its part of the batch, and only the result is sent between devices in the dtype of the
table.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bert_jax.batch import BATCH_AXES


@jax.custom_vjp
def embedding_lookup(table_VD: jax.Array, ids_BL: jax.Array) -> jax.Array:
    """Returns float32 [B, L, D] from a table [V, D] of any float dtype and int32 ids [B, L].

    An id outside the table gives NaN and no gradient.
    """
    return jnp.take(table_VD, ids_BL, axis=0).astype(jnp.float32)


def _fwd(table: jax.Array, ids: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return embedding_lookup(table, ids), (table, ids)


def _bwd(residuals: tuple[jax.Array, jax.Array], grad: jax.Array) -> tuple[jax.Array, Any]:
    table, ids = residuals
    mesh = jax.sharding.get_abstract_mesh()

    def scatter_add(ids: jax.Array, grad: jax.Array) -> jax.Array:
        # Autodiff would add the gradients of all occurrences of a token in the table's dtype, and a
        # bfloat16 sum stops growing after 256 equal terms: 4,096 ones added up to 256.
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
