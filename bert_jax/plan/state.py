"""Parameters, gradients and optimizer state: what they weigh on each device, with none allocated.

Shapes are the network's and the optimizer's own, traced; shardings are the trainer's, on a mesh of
devices that need not be there.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any, cast

import jax
from jax.sharding import AbstractMesh, AxisType

from bert_jax import paths
from bert_jax.experiment import Experiment
from bert_jax.models.config import Compute
from bert_jax.nn import Params
from bert_jax.parallel import sharding
from bert_jax.parallel.config import Mesh
from bert_jax.programs.config import ProgramConfig
from bert_jax.programs.make import make_program
from bert_jax.train.config import Phase, Train, WarmupLinear
from bert_jax.train.optimizer import make_optimizer
from bert_jax.tuning.depth import lowest_moving

AXES = ("data", "fsdp", "tensor")


@dataclass(frozen=True, kw_only=True)
class StateBytes:
    """Of a run on a mesh; bytes are those of one device.

    Attributes:
      count: parameters of the whole model, frozen ones too.
      gradients: of the parameters that move, as large as these.
      lowest: the depth of the lowest parameter that moves, as `tuning.depth` counts: 0 for the
        embeddings. The backward pass ends there.
    """

    count: int
    parameters: int
    optimizer: int
    gradients: int
    lowest: int


def mesh_of(mesh: Mesh, devices: int) -> AbstractMesh:
    """The mesh (data, fsdp, tensor) over so many devices, none of which needs to be there.

    Raises:
      ConfigError: the product of the sizes cannot be the number of devices.
    """
    return AbstractMesh(mesh.sizes(devices), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def state_bytes(experiment: Experiment, devices: int) -> StateBytes:
    """What the state of a run weighs on each of so many devices."""
    # Only what the state depends on: many plans of one run then share an answer.
    program = dataclasses.replace(experiment.program, compute=Compute())
    train = Train(
        phases=(Phase(steps=1, length=1, batch_size=1),),
        schedule=WarmupLinear(warmup_steps=0),
        optimizer=experiment.train.optimizer,
        tuning=experiment.train.tuning,
    )
    return _state_bytes(program, train, mesh_of(experiment.mesh, devices))


@functools.lru_cache(maxsize=64)
def _state_bytes(program: ProgramConfig, train: Train, abstract_mesh: AbstractMesh) -> StateBytes:
    shapes = _parameters(program)
    # Only names and sizes of the mesh's axes are read, which an abstract mesh has.
    mesh = cast(jax.sharding.Mesh, abstract_mesh)
    optimizer = make_optimizer(train)
    placed = _placed(shapes, sharding.parameter_shardings(shapes, mesh))
    slots = jax.eval_shape(optimizer.init, shapes)
    slots = _placed(slots, sharding.optimizer_shardings(optimizer, shapes, mesh))
    params = paths.flatten(placed)
    frozen = train.tuning.frozen
    moving = [
        leaf
        for path, leaf in params.items()
        if not any(paths.matches(pattern, path) for pattern in frozen)
    ]
    return StateBytes(
        count=sum(math.prod(leaf.shape) for leaf in params.values()),
        parameters=sum(map(bytes_on_device, params.values())),
        optimizer=sum(map(bytes_on_device, jax.tree.leaves(slots))),
        gradients=sum(map(bytes_on_device, moving)),
        lowest=lowest_moving(params, frozen),
    )


@functools.lru_cache(maxsize=4)
def _parameters(program: ProgramConfig) -> Params:
    return make_program(program).abstract()


def _placed(shapes: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        shapes,
        shardings,
    )


def bytes_on_device(leaf: jax.ShapeDtypeStruct) -> int:
    """Bytes of one device's shard of an abstract array that has a sharding."""
    assert leaf.sharding is not None
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
