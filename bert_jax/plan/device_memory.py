"""What a phase needs of each device's memory: state, gradients, a batch, activations."""

import math
from dataclasses import dataclass

import numpy as np

from bert_jax.experiment import Experiment
from bert_jax.hardware.tpu_slices import Slice
from bert_jax.plan.activations import (
    DeviceMicrobatch,
    activation_bytes,
    gathered_bytes,
    saved_bytes_of,
)
from bert_jax.plan.inputs import Inputs
from bert_jax.plan.state_bytes import StateBytes


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
    accumulated_gradients: int
    gradients: int
    activations: int

    @property
    def total(self) -> int:
        """The step's peak: a layer's activations go as its gradients come, so the larger counts."""
        persistent = self.parameters + self.optimizer + self.batch + self.accumulated_gradients
        return persistent + max(self.gradients, self.activations)


def phase_memory(
    experiment: Experiment, inputs: Inputs, state: StateBytes, tpu_slice: Slice
) -> Memory:
    """What a phase needs of each device, in its longest batches."""
    data, fsdp, tensor = experiment.mesh.axis_sizes(tpu_slice.devices)
    objective, phase, shards = experiment.objective, inputs.phase, data * fsdp
    microbatch = DeviceMicrobatch(
        num_sequences=inputs.num_sequences // (phase.gradient_accumulation_steps * shards),
        seq_length=inputs.shapes[-1]["L"],
        max_predictions_per_seq=phase.max_predictions_per_seq,
        tensor_parallel_size=tensor,
    )
    batch = sum(
        math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in inputs.batch_spec().values()
    )
    saved = saved_bytes_of(tpu_slice.generation)
    gathered = gathered_bytes(objective, tensor) if fsdp > 1 else 0
    return Memory(
        parameters=state.parameters,
        optimizer=state.optimizer,
        batch=batch // shards,
        accumulated_gradients=state.gradients if phase.gradient_accumulation_steps > 1 else 0,
        gradients=state.gradients + gathered,
        activations=activation_bytes(experiment, microbatch, saved, state.lowest_trainable_layer)
        + gathered,
    )
