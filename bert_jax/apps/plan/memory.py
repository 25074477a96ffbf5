"""Computes the memory that a run needs on each device: state, gradients, batch, activations.

Nothing is allocated: shapes come from tracing the model, the optimizer and the gradient of the loss
(`trace.py`), and shardings are the trainer's own on an abstract mesh.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType

from bert_jax.apps.plan.inputs import Inputs
from bert_jax.apps.plan.trace import Trace, trace_gradient
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import ObjectiveConfig, objective_of_phase
from bert_jax.config.train import MeshConfig, Phase, TrainConfig, WarmupLinear
from bert_jax.config.tuning import TuningConfig
from bert_jax.models.adapters.config import Adapter
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.objectives.make import make_objective
from bert_jax.parallel import sharding
from bert_jax.parallel.tpu_slices import Slice
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
      gathered: the bytes of the FSDP-gathered matrices in the compute dtype, which XLA keeps for
        the backward pass; 0 without FSDP.
      lowest_trainable_layer: the depth of the lowest trainable parameter as defined in
        `tuning.freezing`, 0 for the embeddings. The backward pass ends there.
    """

    num_parameters: int
    num_teacher_parameters: int
    parameters: int
    optimizer: int
    gradients: int
    gathered: int
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
    mesh, dtype = experiment.mesh, experiment.objective.compute.dtype
    return _state_bytes(objective, train, make_abstract_mesh(mesh, devices), dtype)


@functools.lru_cache(maxsize=64)
def _state_bytes(
    objective: ObjectiveConfig, train: TrainConfig, abstract_mesh: AbstractMesh, dtype: str
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
    tensor = abstract_mesh.shape["tensor"]
    gathered = sum(
        leaf.size // (tensor if "tensor" in leaf.sharding.spec else 1)
        for leaf in params.values()
        if "fsdp" in leaf.sharding.spec and leaf.ndim > 1
    )
    num_parameters, num_teacher_parameters = paths.count_parameters(params)
    return StateBytes(
        num_parameters=num_parameters,
        num_teacher_parameters=num_teacher_parameters,
        parameters=sum(map(bytes_on_device, params.values())),
        optimizer=sum(map(bytes_on_device, jax.tree.leaves(opt_state))),
        gradients=sum(map(bytes_on_device, trainable)),
        gathered=gathered * np.dtype(dtype).itemsize if abstract_mesh.shape["fsdp"] > 1 else 0,
        lowest_trainable_layer=lowest_trainable_depth(params, tuning),
    )


@functools.lru_cache(maxsize=4)
def _abstract_params(objective: ObjectiveConfig, adapter: Adapter | None) -> Params:
    return make_objective(objective, adapter=adapter).abstract()


def bytes_on_device(leaf: jax.ShapeDtypeStruct) -> int:
    """Returns the bytes of one device's shard of an abstract array with a sharding."""
    assert leaf.sharding is not None
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Holds the peak memory of a step on one device, in bytes.

    Attributes:
      parameters: the parameters, float32; they are updated in place.
      optimizer: the optimizer state, float32; it is updated in place.
      batch: the device's part of the input batch.
      accumulated_gradients: the sum over earlier microbatches, float32; 0 without microbatches.
      gradients: all gradients at the end of the backward pass, float32.
      activations: all values of the forward and backward pass at the peak: activations and, with
        remat or short batches, the gradients that exist by then.
    """

    parameters: int
    optimizer: int
    batch: int
    accumulated_gradients: int
    gradients: int
    activations: int

    @property
    def total(self) -> int:
        """Returns the peak of the step.

        A layer's activations are freed when its gradients are created, so only the larger counts.
        """
        persistent = self.parameters + self.optimizer + self.batch + self.accumulated_gradients
        return persistent + max(self.gradients, self.activations)


def phase_memory(
    experiment: Experiment, inputs: Inputs, state: StateBytes, tpu_slice: Slice
) -> Memory:
    """Returns the memory that the longest batches of a phase need on each device."""
    data, fsdp, tensor = experiment.mesh.axis_sizes(tpu_slice.devices)
    num_microbatches = inputs.phase.gradient_accumulation_steps
    batch = sum(
        math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in inputs.batch_spec().values()
    )
    trace = _trace(
        objective_of_phase(experiment.objective, inputs.phase),
        experiment.train.tuning,
        inputs.fields,
        tuple(inputs.shapes[-1].items()),
    )
    activations = trace.peak(
        tpu_slice.generation,
        batch_fraction=1 / (data * fsdp * num_microbatches),
        tensor_parallel_size=tensor,
        gradient_shards=fsdp,
    )
    return Memory(
        parameters=state.parameters,
        optimizer=state.optimizer,
        batch=batch // (data * fsdp),
        accumulated_gradients=state.gradients if num_microbatches > 1 else 0,
        gradients=state.gradients + state.gathered,
        activations=activations + state.gathered,
    )


@functools.lru_cache(maxsize=64)
def _trace(
    objective: ObjectiveConfig,
    tuning: TuningConfig,
    fields: tuple[str, ...],
    sizes: tuple[tuple[str, int], ...],
) -> Trace:
    """Traces a phase once for all slices, which takes seconds."""
    return trace_gradient(objective, tuning, fields, dict(sizes))
