"""Computes the sharding of every parameter, optimizer state and batch field on a device mesh.

Parameters are stored in float32, split over the mesh axis fsdp, and are used whole. Without a
constraint XLA may split activations by width as it splits the parameters, and then every device
computes all examples. With the constraint of `gather_params` it gathers the parameters
where they are used and sums their gradients, of which each device takes its part. (Asked to scatter
the sums, XLA's TPU compiler turns each product into a loop over sixteen slices, which are too
narrow for the matrix unit.)

With `communication_dtype` bfloat16 a matrix is rounded before it is gathered. Products would round
it anyway, but its gradient is then summed over the devices in bfloat16, too, as in T5X (Roberts et
al. 2022). The optimizer gets float32.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.tree_util import DictKey, tree_map_with_path

from bert_jax.batch import BATCH_AXES
from bert_jax.config import train
from bert_jax.config.train import CommunicationDtype
from bert_jax.errors import ConfigError
from bert_jax.models.sharding import LOGICAL_TO_MESH, parameter_axes
from bert_jax.params import paths
from bert_jax.params.functional import Params


def make_mesh(
    mesh_config: train.MeshConfig, devices: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
    """Makes the device mesh (data, fsdp, tensor), by default over all devices of all processes.

    Its devices are in the order of their processes, so that row i of a global batch is row i of the
    loaders' batches one after another. `jax.make_mesh` puts those of a TPU slice into a ring, which
    mixes the processes; evaluations and packed texts, which count rows, would then be wrong.

    Raises:
      ConfigError: the mesh does not fit the devices; see `MeshConfig.axis_sizes`.
    """
    devices = jax.devices() if devices is None else devices
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    num_processes = len({device.process_index for device in ordered})
    sizes = mesh_config.axis_sizes(len(ordered), num_processes)
    # XLA propagates the shardings through the model, hence no explicit axes.
    return jax.sharding.Mesh(
        np.array(ordered).reshape(sizes),
        ("data", "fsdp", "tensor"),
        axis_types=(AxisType.Auto,) * 3,
    )


def parameter_spec(path: str, shape: tuple[int, ...], mesh: jax.sharding.Mesh) -> PartitionSpec:
    """Returns how a parameter is split; a dimension that is not divisible stays whole."""
    axes = parameter_axes()[path]
    if len(axes) != len(shape):
        raise KeyError(f"parameter {path!r} has shape {shape}, but the table names axes {axes}")
    mesh_axes = []
    for name, size in zip(axes, shape, strict=True):
        axis = None if name is None else LOGICAL_TO_MESH[name]
        mesh_axes.append(axis if axis and size % mesh.shape[axis] == 0 else None)
    return PartitionSpec(*mesh_axes)


def parameter_shardings(params: dict[str, Any], mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Returns a `NamedSharding` for each (abstract) parameter."""
    return paths.map_with_path(
        lambda path, leaf: NamedSharding(mesh, parameter_spec(path, leaf.shape, mesh)), params
    )


# State under a parameter's path (moments, anchors) is sharded like the parameter, so that masked,
# partitioned and anchored states need no rules of their own. On 16 chips this is faster than
# replicas: each chip computes a sixteenth of the update (ZeRO, Rajbhandari et al. 2020).
def optimizer_shardings(
    optimizer: optax.GradientTransformation, params: dict[str, Any], mesh: jax.sharding.Mesh
) -> Any:
    """Shards optimizer state that belongs to a parameter as the parameter; replicates the rest.

    A leaf belongs to a parameter if its path ends in the parameter's path and shapes are equal.
    """
    params_by_path = paths.flatten(params)

    def leaf_sharding(keys: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = [key.key if isinstance(key, DictKey) else None for key in keys]
        start = max((i + 1 for i, name in enumerate(names) if name is None), default=0)
        path = "/".join(str(name) for name in names[start:])
        if path in params_by_path and params_by_path[path].shape == leaf.shape:
            return NamedSharding(mesh, parameter_spec(path, leaf.shape, mesh))
        # Scalars such as Adam's count, too: without a sharding of the mesh they would be on one
        # device, and a restored run would fail on them.
        return replicated(mesh)

    return tree_map_with_path(leaf_sharding, jax.eval_shape(optimizer.init, params))


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Returns the sharding of an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Returns the sharding of every batch field: examples over data and fsdp."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def num_batch_shards(mesh: jax.sharding.Mesh) -> int:
    """Returns the number of parts into which `batch_sharding` splits the examples of a batch."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def check_batch_size(
    batch_size: int, gradient_accumulation_steps: int, mesh: jax.sharding.Mesh
) -> None:
    """Raises a ConfigError unless each microbatch can be split evenly over the devices."""
    shards = num_batch_shards(mesh)
    if batch_size % (gradient_accumulation_steps * shards):
        divisor = f"{gradient_accumulation_steps} microbatches x {shards} devices (data x fsdp)"
        nearest = (
            max(1, round(batch_size / (gradient_accumulation_steps * shards)))
            * gradient_accumulation_steps
            * shards
        )
        raise ConfigError(
            f"batch_size {batch_size} is not divisible by {divisor}; the nearest that is: {nearest}"
        )


def with_shardings(shapes: Any, shardings: Any) -> Any:
    """Returns the tree `shapes` as `jax.ShapeDtypeStruct` leaves with the given shardings."""
    return jax.tree.map(
        lambda leaf, leaf_sharding: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=leaf_sharding
        ),
        shapes,
        shardings,
    )


def put_global_batch(batch: dict[str, np.ndarray], sharding: NamedSharding) -> dict[str, jax.Array]:
    """Makes global arrays from fields that every process holds in full."""
    return {
        name: jax.make_array_from_callback(rows.shape, sharding, rows.__getitem__)
        for name, rows in batch.items()
    }


def put_batch(local_batch: dict[str, np.ndarray], sharding: NamedSharding) -> dict[str, jax.Array]:
    """Makes global arrays from this process's examples of each field."""
    return {
        name: jax.make_array_from_process_local_data(sharding, local_rows)
        for name, local_rows in local_batch.items()
    }


MATRIX_PATTERNS = ("encoder/**", "masked_lm/**")
"""The matrices that are rounded; task heads are small and are computed in float32."""


# Matrices are cast before they are gathered, so that their gradients have the dtype of
# communication and are summed in it, for any objective.
def gather_params(
    abstract: Params, communication_dtype: CommunicationDtype
) -> Callable[[Params], Params]:
    """Returns the function that gathers parameters over fsdp, and rounds matrices if asked.

    It is traced under `jax.grad`: gradients are summed over the devices in the dtype of
    communication.

    Args:
      abstract: the parameters with their shardings; a split over the axis tensor stays.
    """
    gathered_shardings = jax.tree.map(_replicated_over_fsdp, abstract)
    dtype = jnp.dtype(communication_dtype)

    def cast_matrix(path: str, leaf: Any) -> Any:
        # Products would round a matrix anyway, which is not so for biases and norms.
        is_matrix = leaf.ndim > 1 and paths.matches_any(MATRIX_PATTERNS, path)
        return leaf.astype(dtype) if is_matrix else leaf

    def gather(params: Params) -> Params:
        cast_params = paths.map_with_path(cast_matrix, params)
        return jax.tree.map(jax.lax.with_sharding_constraint, cast_params, gathered_shardings)

    return gather


def _replicated_over_fsdp(leaf: Any) -> NamedSharding:
    # Only fsdp is gathered: a split over tensor is how the layers compute.
    spec = PartitionSpec(*(None if axis == "fsdp" else axis for axis in leaf.sharding.spec))
    return NamedSharding(leaf.sharding.mesh, spec)
