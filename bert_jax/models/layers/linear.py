"""Defines the leaf layers of all families: linear, norms, embedding table; BERT's init.

Autodiff would sum the gradients of a row of a table in the dtype of the table. In bfloat16 the row
of a frequent token stops changing once its sum is 256 times the next term. So `embedding_lookup`
sums on each device in float32 over its part of the batch, and only the result is sent between
devices in the dtype of the table.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from bert_jax.batch import BATCH_AXES
from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.matmul import dense


@jax.custom_vjp
def embedding_lookup(table_VD: jax.Array, ids_BL: jax.Array) -> jax.Array:
    """Returns float32 [B, L, D] from a table [V, D] of any float dtype and int32 ids [B, L].

    An id outside the table gives NaN and no gradient.
    """
    return jnp.take(table_VD, ids_BL, axis=0).astype(jnp.float32)


def _fwd(table: jax.Array, ids: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return embedding_lookup(table, ids), (table, ids)


def _bwd(residuals: tuple[jax.Array, jax.Array], grad: jax.Array) -> tuple[jax.Array, None]:
    table, ids = residuals
    return _table_gradient(table, ids, grad), None


def _table_gradient(table: jax.Array, ids: jax.Array, grad: jax.Array) -> jax.Array:
    mesh = jax.sharding.get_abstract_mesh()

    def scatter_add(ids: jax.Array, grad: jax.Array) -> jax.Array:
        # Autodiff would add the gradients of all occurrences of a token in the table's dtype, and a
        # bfloat16 sum stops growing after 256 equal terms: 4,096 ones added up to 256.
        total = jnp.zeros(table.shape, jnp.float32).at[ids].add(grad)
        total = total.astype(table.dtype)
        return total if mesh.empty else jax.lax.psum(total, BATCH_AXES)

    if mesh.empty:  # one device
        return scatter_add(ids, grad)
    batch_spec = PartitionSpec(BATCH_AXES)
    return jax.shard_map(scatter_add, in_specs=(batch_spec, batch_spec), out_specs=PartitionSpec())(
        ids, grad
    )


embedding_lookup.defvjp(_fwd, _bwd)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PartlyTrainedTable:
    """Holds a table of embeddings of which only some rows have gradients.

    The gradient of a whole table is a table of zeros but for the rows of a batch, which devices
    would send to each other.

    Attributes:
      table: [V, D].
      row_ids: int32 [R], ascending. Other ids may be looked up, but receive no gradient.
      rows: [R, D], the values of these rows in `table`, which receive the gradients.
    """

    table: jax.Array
    row_ids: jax.Array
    rows: jax.Array


@jax.custom_vjp
def _partly_trained_lookup(table: PartlyTrainedTable, ids_BL: jax.Array) -> jax.Array:
    return embedding_lookup(table.table, ids_BL)


def _partly_trained_fwd(
    table: PartlyTrainedTable, ids: jax.Array
) -> tuple[jax.Array, tuple[PartlyTrainedTable, jax.Array]]:
    return _partly_trained_lookup(table, ids), (table, ids)


def _partly_trained_bwd(
    residuals: tuple[PartlyTrainedTable, jax.Array], grad: jax.Array
) -> tuple[Any, None]:
    table, ids = residuals
    indices = jnp.searchsorted(table.row_ids, ids).astype(jnp.int32)
    num_rows = len(table.row_ids)
    has_row = table.row_ids[jnp.minimum(indices, num_rows - 1)] == ids
    indices = jnp.where(has_row, indices, num_rows)  # outside, which adds nothing
    gradient = _table_gradient(table.rows, indices, grad)
    return PartlyTrainedTable(table=None, row_ids=None, rows=gradient), None  # pyright: ignore[reportArgumentType]


_partly_trained_lookup.defvjp(_partly_trained_fwd, _partly_trained_bwd)


class Linear(nnx.Linear):
    """Computes a dense layer with float32 sums, forward and backward.

    `nnx.Linear` with another product: autodiff of the stock one either rounds gradients to bfloat16
    or multiplies in float32 (see `layers/matmul.py`).
    """

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        """Maps [..., inputs] to [..., outputs] in the compute dtype."""
        assert self.dtype is not None
        dtype, bias = jnp.dtype(self.dtype), None if self.bias is None else self.bias[...]
        product: jax.Array = dense(x, self.kernel[...], bias, dtype)
        return product.astype(dtype)


def linear(
    in_features: int,
    out_features: int,
    config: TransformerConfig,
    compute: ComputeConfig,
    rngs: nnx.Rngs,
    *,
    use_bias: bool = True,
    stddev: float | None = None,
) -> Linear:
    """Builds a dense layer with a kernel [inputs, outputs] and a bias, both float32.

    `stddev` None is the deviation of BERT's initializer.
    """
    return Linear(
        in_features,
        out_features,
        use_bias=use_bias,
        dtype=jnp.dtype(compute.dtype),
        param_dtype=jnp.float32,
        kernel_init=initializer(config, stddev),
        rngs=rngs,
    )


# `nnx.LayerNorm` does not run in bfloat16 under strict dtype promotion.
class LayerNorm(nnx.Module):
    """Normalizes the last axis (Ba et al. 2016): statistics in float32, result in `dtype`.

    Replaces `nnx.LayerNorm`, which fails in bfloat16 under strict dtype promotion.
    """

    def __init__(self, num_features: int, epsilon: float, dtype: str, *, use_bias: bool = True):
        self.scale = nnx.Param(jnp.ones((num_features,), jnp.float32))
        if use_bias:
            self.bias = nnx.Param(jnp.zeros((num_features,), jnp.float32))
        self.use_bias = use_bias
        self.epsilon = epsilon
        self.dtype = jnp.dtype(dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., D] to [..., D] in `dtype`."""
        x = x.astype(jnp.float32)
        mean = jnp.mean(x, axis=-1, keepdims=True)
        centered = x - mean
        if self.dtype == jnp.float32:
            # E[x^2] - E[x]^2 loses digits that parity with other implementations needs.
            variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
        else:  # one pass over x; it rounds far less than bfloat16 inputs do
            squares = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
            variance = jnp.maximum(squares - jnp.square(mean), 0.0)
        normalized = centered * jax.lax.rsqrt(variance + self.epsilon)
        scaled = normalized * self.scale[...]
        return (scaled + self.bias[...] if self.use_bias else scaled).astype(self.dtype)

    # A method, so that bottleneck adapters, which stand between a sublayer and its residual, can
    # replace it.
    def add(self, residual: jax.Array, y: jax.Array) -> jax.Array:
        """Normalizes the sum of a residual and the output of a sublayer; adapters replace this."""
        return self(residual + y)


class RmsNorm(LayerNorm):
    """Divides the last axis by its root mean square (Zhang and Sennrich 2019), without a bias.

    Statistics are in float32, the result in `dtype`.
    """

    def __init__(self, num_features: int, epsilon: float, dtype: str):
        super().__init__(num_features, epsilon, dtype, use_bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., D] to [..., D] in `dtype`."""
        x = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        normalized = x * jax.lax.rsqrt(mean_square + self.epsilon)
        return (normalized * self.scale[...]).astype(self.dtype)


def layer_norm(
    config: TransformerConfig, compute: ComputeConfig, num_features: int | None = None
) -> LayerNorm:
    """Builds the norm of a config, over D features or another number of them."""
    width = num_features or config.hidden_size
    if config.norm == "rms_norm":
        return RmsNorm(width, config.layer_norm_eps, compute.dtype)
    return LayerNorm(
        width,
        config.layer_norm_eps,
        compute.dtype,
        use_bias=config.norm == "layer_norm",
    )


class EmbeddingTable(nnx.Embed):
    """Looks up embeddings, with gradients that are summed in float32.

    `nnx.Embed` with another lookup: autodiff of the stock one sums gradients in the dtype of the
    table (see `embedding_lookup`).
    """

    def __call__(self, ids: jax.Array) -> jax.Array:  # type: ignore[override]
        """Maps int32 [B, L] to float32 [B, L, E]."""
        table: Any = self.embedding.get_value()
        if isinstance(table, PartlyTrainedTable):
            return _partly_trained_lookup(table, ids)
        return embedding_lookup(table, ids)


def embedding(
    num_embeddings: int,
    config: TransformerConfig,
    rngs: nnx.Rngs,
    init: nnx.Initializer | None = None,
) -> EmbeddingTable:
    """Builds a table [num_embeddings, E] in float32; `init` None is BERT's initializer."""
    return EmbeddingTable(
        num_embeddings,
        config.word_embedding_size,
        param_dtype=jnp.float32,
        embedding_init=init or initializer(config),
        rngs=rngs,
    )


def initializer(config: TransformerConfig, stddev: float | None = None) -> nnx.Initializer:
    """Returns BERT's initializer: normal, truncated at two standard deviations.

    `stddev` None is the config's `initializer_range`.
    """
    return nnx.initializers.truncated_normal(config.initializer_range if stddev is None else stddev)


def output_stddev(config: TransformerConfig) -> float:
    """Returns the initial deviation of kernels that write to the residual of a pre-norm stack.

    The sum of the 2 N outputs of a stack then has the deviation of a single one.
    """
    return config.initializer_range / math.sqrt(2.0 * config.num_hidden_layers)
