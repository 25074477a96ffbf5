"""Computes LoRA (dense layers and token embeddings) and DoRA (dense layers).

Names and shapes of the trained parameters, under the path of the layer that they adapt:

    lora_a            [in, R]     uniform in ±1/sqrt(in), as in peft
    lora_b            [R, out]    zeros
    magnitude         [out]       of DoRA: the norms of the columns of the base kernel
    lora_embedding_a  [V, R]      of token embeddings: zeros
    lora_embedding_b  [R, E]      normal
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.adapters.config import DoRA, LoRA
from bert_jax.models.adapters.modules import (
    Implementation,
    Leaves,
    Modules,
    Shapes,
    replace_submodule,
    rowwise_dense,
    rowwise_vector,
    select_layers,
    submodule,
)
from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.dropout import DropoutSeed, dropout
from bert_jax.models.layers.linear import embedding_lookup
from bert_jax.models.layers.matmul import dense
from bert_jax.params.paths import LAYER_PREFIX


# Layouts are [in, out] as everywhere here, so that peft's tensors are the transposes.
def _shapes(method: LoRA, modules: Modules, config: TransformerConfig) -> Shapes:
    del config
    return {
        path: _layer_shapes(method, path, modules[path])
        for path in select_layers(method.targets, modules)
    }


def _layer_shapes(method: LoRA, path: str, base: Leaves) -> dict[str, tuple[int, ...]]:
    rows, columns = base["kernel" if "kernel" in base else "embedding"].shape
    if method.rank > min(rows, columns):
        raise ConfigError(
            f"train.tuning.method.rank is {method.rank}, but the matrix of {path} is "
            f"[{rows}, {columns}]; expected at most {min(rows, columns)}"
        )
    if "kernel" not in base:
        if isinstance(method, DoRA):
            raise ConfigError(
                f"train.tuning.method.targets selects {path}, which is an embedding table; DoRA "
                "adapts dense layers only; remove this target, or use LoRA"
            )
        return {"lora_embedding_a": (rows, method.rank), "lora_embedding_b": (method.rank, columns)}
    shapes = {"lora_a": (rows, method.rank), "lora_b": (method.rank, columns)}
    return {**shapes, "magnitude": (columns,)} if isinstance(method, DoRA) else shapes


def _init(
    method: LoRA, shapes: Mapping[str, tuple[int, ...]], key: jax.Array
) -> dict[str, jax.Array]:
    del method
    values: dict[str, jax.Array] = {}
    for name, shape in shapes.items():
        match name:
            case "lora_a":
                bound = shape[0] ** -0.5
                values[name] = jax.random.uniform(key, shape, jnp.float32, -bound, bound)
            case "lora_embedding_b":
                values[name] = jax.random.normal(key, shape, jnp.float32)
            case "magnitude":  # `_from_base` replaces it
                values[name] = jnp.ones(shape, jnp.float32)
            case _:
                values[name] = jnp.zeros(shape, jnp.float32)
    return values


def _from_base(method: LoRA, adapter: Leaves, base: Leaves) -> dict[str, Any]:
    del method
    if "magnitude" not in adapter:
        return dict(adapter)
    # Computed by JAX, as in the step, because NumPy's norms differ in the last bit.
    return {**adapter, "magnitude": _column_norms(jnp.asarray(base["kernel"]))}


def _merge(method: LoRA, path: str, adapter: Leaves, base: Leaves) -> dict[str, Any]:
    del path
    if "lora_embedding_a" in adapter:
        product = adapter["lora_embedding_a"] @ adapter["lora_embedding_b"]
        return {**base, "embedding": base["embedding"] + method.scale * product}
    kernel = base["kernel"] + method.scale * (adapter["lora_a"] @ adapter["lora_b"])
    if "magnitude" in adapter:
        kernel = kernel * (adapter["magnitude"] / _column_norms(kernel))
    return {**base, "kernel": kernel}


class LoRALinear(nnx.Module):
    """Adds the scaled low-rank product to a dense layer; see `LoRA` and `DoRA`.

    Attributes:
      dropout_seed: seed of the dropout of the input, which the block sets before it runs; None to
        apply no dropout.
    """

    def __init__(self, base: Any, adapter: Leaves, method: LoRA):
        self.base, self.method = base, method
        self.lora_a, self.lora_b = nnx.Param(adapter["lora_a"]), nnx.Param(adapter["lora_b"])
        self.has_magnitude = "magnitude" in adapter
        if self.has_magnitude:
            self.magnitude = nnx.Param(adapter["magnitude"])
        # Without `nnx.data` an attribute that is None at first cannot hold an array later.
        self.dropout_seed: DropoutSeed | None = nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., in] to [..., out] in the compute dtype."""
        dtype, y = jnp.dtype(self.base.dtype), self.base(x)
        dropped = dropout(x, self.method.dropout, self.dropout_seed)
        # Scaled before B: `low_rank` has R elements for each token, the output many more.
        low_rank = self.method.scale * rowwise_dense(dropped, self.lora_a[...], dtype)
        delta = rowwise_dense(low_rank.astype(dtype), self.lora_b[...], dtype)
        if self.has_magnitude:
            return self._decomposed(x, dropped, y, delta)
        return y + delta.astype(dtype)

    def _decomposed(
        self, x: jax.Array, dropped: jax.Array, y: jax.Array, delta: jax.Array
    ) -> jax.Array:
        dtype, kernel = y.dtype, self.base.kernel[...]
        a, b = (jax.lax.stop_gradient(leaf[...]) for leaf in (self.lora_a, self.lora_b))
        # A communication dtype of bfloat16 rounds the kernel, but not the adapter.
        frozen = jax.lax.stop_gradient(kernel).astype(jnp.float32)
        norm = _column_norms(frozen + self.method.scale * (a @ b))
        # Not magnitude / norm: XLA computes it as magnitude * (1 / sqrt(...)), which may differ
        # from 1 where both are equal.
        excess = rowwise_vector((self.magnitude[...] - norm) / norm, delta)
        if dropped is x:  # the product without the bias
            product = y if self.base.bias is None else y - self.base.bias[...].astype(dtype)
        else:
            product = dense(dropped, kernel, None, dtype).astype(dtype)
        # Written as a change of the base, which is exactly zero while magnitude and norm are equal.
        change = excess * product.astype(jnp.float32) + (1.0 + excess) * delta
        return y + change.astype(dtype)


class LoRAEmbedding(nnx.Module):
    """Adds the scaled low-rank product to a table of embeddings, and to a decoder tied to it."""

    def __init__(self, base: Any, adapter: Leaves, method: LoRA):
        self.base, self.method = base, method
        self.lora_embedding_a = nnx.Param(adapter["lora_embedding_a"])
        self.lora_embedding_b = nnx.Param(adapter["lora_embedding_b"])

    @property
    def embedding(self) -> jax.Array:
        """Returns the adapted table, float32 [V, E], for a masked-LM decoder that is tied to it."""
        product = self.lora_embedding_a[...] @ self.lora_embedding_b[...]
        return self.base.embedding[...].astype(jnp.float32) + self.method.scale * product

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Maps int32 [B, L] to float32 [B, L, E]."""
        a, b = self.lora_embedding_a[...], self.lora_embedding_b[...]
        if a.ndim == 3:  # one adapter for each row of the batch
            rows = jnp.take_along_axis(a, ids[..., None], axis=1)
        else:
            rows = embedding_lookup(a, ids)
        return self.base(ids) + rowwise_dense(self.method.scale * rows, b, jnp.dtype(jnp.float32))


class LoRABlock(nnx.Module):
    """Runs an encoder block whose `LoRALinear` modules apply dropout to their inputs.

    The seeds are derived from the block's seeds. The block's own dropouts do not change, so that
    with B = 0 the loss of a training step is the base's, to the last bit. The query, key and
    value of an attention have the same seed, so that one mask of their input serves all three, as
    in `MergedLinear` of the authors' library, loralib. peft draws a mask for each adapted layer.
    """

    def __init__(self, block: Any, adapted: tuple[str, ...]):
        """Wraps a layer; `adapted` has the paths of its `LoRALinear` modules inside it."""
        self.block, self.adapted = block, adapted
        groups = [_mask_group(path) for path in adapted]
        self.seed_indices = tuple(groups.index(name) for name in groups)

    @property
    def kind(self) -> Any:
        """Returns the kind of the layer, for stacks of different layers."""
        return self.block.kind

    @property
    def num_dropout_sites(self) -> int:
        """Returns the number of dropouts of the layer, for encoders that draw their seeds."""
        return self.block.num_dropout_sites

    def __call__(
        self, x_BLD: jax.Array, inputs: Any, dropout_seeds: jax.Array | None, **options: Any
    ) -> Any:
        """Runs the layer with the layer's arguments."""
        for index, path in zip(self.seed_indices, self.adapted, strict=True):
            module = submodule(self.block, path)
            module.dropout_seed = None if dropout_seeds is None else _seed(dropout_seeds[0], index)
        return self.block(x_BLD, inputs, dropout_seeds, **options)


def _mask_group(path: str) -> str:
    """Returns the name of the dropout mask of an adapted layer: query, key and value share one."""
    parent, _, name = path.rpartition("/")
    return parent if name in ("query", "key", "value") else path


# Derived from the seed of the layer: the masks of the base do not change, and an adapter whose
# product is zero gives bit-identical losses.
def _seed(layer_seed: DropoutSeed, index: int) -> DropoutSeed:
    """Derives the seed of a mask from one of the layer; each mask of a layer has its own index."""
    mask = [(index + 1) * factor % 2**32 for factor in (0x9E3779B1, 0x85EBCA77)]
    return layer_seed ^ jnp.array(mask, jnp.uint32)


def _install(method: LoRA, network: Any, adapter: Modules) -> None:
    blocks: dict[str, list[str]] = {}
    for path, leaves in adapter.items():
        base = submodule(network, path)
        is_dense = "lora_a" in leaves
        new = LoRALinear(base, leaves, method) if is_dense else LoRAEmbedding(base, leaves, method)
        replace_submodule(network, path, new)
        if method.dropout and (match := LAYER_PREFIX.match(path)):
            blocks.setdefault(match[0].rstrip("/"), []).append(path[match.end() :])
    for path, adapted in blocks.items():
        replace_submodule(network, path, LoRABlock(submodule(network, path), tuple(adapted)))


def _column_norms(kernel: Any) -> Any:
    """Returns the Euclidean norm of each column of [..., in, out], [..., out]; NumPy for NumPy."""
    if isinstance(kernel, np.ndarray):
        return np.sqrt(np.sum(np.square(kernel), axis=-2))
    # A matrix product: XLA may fuse a sum with its neighbors and add in another order, and then
    # the stored magnitude and the norm would differ before the first update.
    ones = jnp.ones(kernel.shape[-2], kernel.dtype)
    return jnp.sqrt(jnp.matmul(ones, jnp.square(kernel), precision=jax.lax.Precision.HIGHEST))


IMPLEMENTATION = Implementation(_shapes, _init, _install, _merge, _from_base)
