"""Computes the bytes of parameters, gradients, and optimizer state on each device.

Nothing is allocated: shapes come from tracing the model and the optimizer, and shardings are the
trainer's own on an abstract mesh.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import cast

import jax
from jax.sharding import AbstractMesh, AxisType

from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import ObjectiveConfig
from bert_jax.config.train import MeshConfig, Phase, TrainConfig, WarmupLinear
from bert_jax.models.adapters.config import Adapter
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.objectives.make import make_objective
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.params.functional import Params
from bert_jax.train.optimizer import make_optimizer
from bert_jax.train.tuning.freezing import is_frozen, lowest_trainable_depth

MESH_AXES = ("data", "fsdp", "tensor")


@dataclass(frozen=True, kw_only=True)
class StateBytes:
    """Holds the size of a run's state; bytes are per device.

    Attributes:
      num_parameters: the parameters of the model, including frozen ones; without the teacher's.
      num_teacher_parameters: the parameters of the teacher in distillation, which are not trained.
      parameters: the bytes of the parameters.
      optimizer: the bytes of the optimizer state.
      gradients: the bytes of the gradients of the trainable parameters.
      lowest_trainable_layer: the depth of the lowest trainable parameter as defined in
        `tuning.freezing`, 0 for the embeddings. The backward pass ends there.
    """

    num_parameters: int
    num_teacher_parameters: int
    parameters: int
    optimizer: int
    gradients: int
    lowest_trainable_layer: int


def make_abstract_mesh(mesh: MeshConfig, devices: int) -> AbstractMesh:
    """Returns the mesh (data, fsdp, tensor) over a number of devices that need not exist.

    Raises:
      ConfigError: the axis sizes do not multiply to the number of devices.
    """
    return AbstractMesh(
        mesh.axis_sizes(devices), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES)
    )


def state_bytes(experiment: Experiment, devices: int) -> StateBytes:
    """Returns the size of a run's state on each of `devices` devices."""
    # Keep only the settings that the state depends on, so that plans of one run share a cache
    # entry.
    objective = dataclasses.replace(experiment.objective, compute=ComputeConfig())
    train = TrainConfig(
        phases=(Phase(steps=1, seq_length=1, batch_size=1),),
        schedule=WarmupLinear(warmup_steps=0),
        optimizer=experiment.train.optimizer,
        tuning=experiment.train.tuning,
    )
    return _state_bytes(objective, train, make_abstract_mesh(experiment.mesh, devices))


@functools.lru_cache(maxsize=64)
def _state_bytes(
    objective: ObjectiveConfig, train: TrainConfig, abstract_mesh: AbstractMesh
) -> StateBytes:
    shapes = _abstract_params(objective, train.tuning.adapter)
    # The sharding functions only read axis names and sizes, which an abstract mesh has.
    mesh = cast(jax.sharding.Mesh, abstract_mesh)
    optimizer = make_optimizer(train)
    sharded_params = sharding.with_shardings(shapes, sharding.parameter_shardings(shapes, mesh))
    opt_state = jax.eval_shape(optimizer.init, shapes)
    opt_state = sharding.with_shardings(
        opt_state, sharding.optimizer_shardings(optimizer, shapes, mesh)
    )
    params = paths.flatten(sharded_params)
    tuning = train.tuning
    trainable = [leaf for path, leaf in params.items() if not is_frozen(tuning, path)]
    num_parameters, num_teacher_parameters = paths.count_parameters(params)
    return StateBytes(
        num_parameters=num_parameters,
        num_teacher_parameters=num_teacher_parameters,
        parameters=sum(map(bytes_on_device, params.values())),
        optimizer=sum(map(bytes_on_device, jax.tree.leaves(opt_state))),
        gradients=sum(map(bytes_on_device, trainable)),
        lowest_trainable_layer=lowest_trainable_depth(params, tuning),
    )


@functools.lru_cache(maxsize=4)
def _abstract_params(objective: ObjectiveConfig, adapter: Adapter | None) -> Params:
    return make_objective(objective, adapter=adapter).abstract()


def bytes_on_device(leaf: jax.ShapeDtypeStruct) -> int:
    """Returns the bytes of one device's shard of an abstract array with a sharding."""
    assert leaf.sharding is not None
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
