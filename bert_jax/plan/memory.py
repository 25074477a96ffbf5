"""What a phase needs of each device's memory: state, gradients, a batch, activations."""

import math
from dataclasses import dataclass

import numpy as np

from bert_jax.experiment import Experiment
from bert_jax.plan.activations import Part, activation_bytes, gathered_bytes, keeps_of
from bert_jax.plan.inputs import Inputs
from bert_jax.plan.slices import Slice
from bert_jax.plan.state import StateBytes


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one device at the fullest moment of a step.

    Attributes:
      parameters, optimizer: the state, float32; it is updated in place.
      batch: the fields of the device's rows.
      summed: the gradients of the microbatches before, float32; 0 without microbatches.
      gradients: all of them, float32, as they are at the end of the backward pass.
      activations: as they are at its beginning; `plan/activations.py` has the formula.
    """

    parameters: int
    optimizer: int
    batch: int
    summed: int
    gradients: int
    activations: int

    @property
    def total(self) -> int:
        """The step's peak: a layer's activations go as its gradients come, so the larger counts."""
        lasting = self.parameters + self.optimizer + self.batch + self.summed
        return lasting + max(self.gradients, self.activations)


def phase_memory(experiment: Experiment, inputs: Inputs, state: StateBytes, where: Slice) -> Memory:
    """What a phase needs of each device, in its longest batches."""
    data, fsdp, tensor = experiment.mesh.sizes(where.devices)
    program, phase, shards = experiment.program, inputs.phase, data * fsdp
    part = Part(
        texts=inputs.texts // (phase.accumulate * shards),
        length=inputs.shapes[-1]["L"],
        predictions=phase.max_predictions,
        tensor=tensor,
    )
    batch = sum(
        math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in inputs.spec().values()
    )
    keeps = keeps_of(where.generation)
    whole = gathered_bytes(program, tensor) if fsdp > 1 else 0
    return Memory(
        parameters=state.parameters,
        optimizer=state.optimizer,
        batch=batch // shards,
        summed=state.gradients if phase.accumulate > 1 else 0,
        gradients=state.gradients + whole,
        activations=activation_bytes(experiment, part, keeps, state.lowest) + whole,
    )
