"""Estimates the memory that a phase needs on each device: state, gradients, batch, activations."""

import math
from dataclasses import dataclass

import numpy as np

from bert_jax.apps.plan.activations import activation_bytes, gathered_bytes, saved_bytes_of
from bert_jax.apps.plan.device_microbatch import DeviceMicrobatch
from bert_jax.apps.plan.encoder_decoder_activations import (
    encoder_decoder_activation_bytes,
    encoder_decoder_gathered_bytes,
)
from bert_jax.apps.plan.inputs import Inputs
from bert_jax.apps.plan.state_bytes import StateBytes
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Seq2Seq
from bert_jax.parallel.tpu_slices import Slice


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Holds the peak memory of a step on one device, in bytes.

    Attributes:
      parameters: the parameters, float32; they are updated in place.
      optimizer: the optimizer state, float32; it is updated in place.
      batch: the device's part of the input batch.
      accumulated_gradients: the sum over earlier microbatches, float32; 0 without microbatches.
      gradients: all gradients at the end of the backward pass, float32.
      activations: the activations at the beginning of the backward pass; `plan/activations.py`
        has the formula, and `plan/encoder_decoder_activations.py` that of encoder-decoders.
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
    objective, phase, shards = experiment.objective, inputs.phase, data * fsdp
    microbatch = DeviceMicrobatch(
        num_sequences=inputs.num_sequences // (phase.gradient_accumulation_steps * shards),
        seq_length=inputs.shapes[-1]["L"],
        max_predictions_per_seq=phase.max_predictions_per_seq,
        target_length=phase.target_length,
        tensor_parallel_size=tensor,
    )
    batch = sum(
        math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in inputs.batch_spec().values()
    )
    saved = saved_bytes_of(tpu_slice.generation)
    if isinstance(objective, Seq2Seq):
        gathered = encoder_decoder_gathered_bytes(objective, tensor)
        decoder_fraction = objective.model.decoder_kernel_params / state.num_parameters
        activations = encoder_decoder_activation_bytes(
            objective, microbatch, saved, int(decoder_fraction * state.gradients)
        )
    else:
        gathered = gathered_bytes(objective, tensor)
        activations = activation_bytes(experiment, microbatch, saved, state.lowest_trainable_layer)
    gathered = gathered if fsdp > 1 else 0
    return Memory(
        parameters=state.parameters,
        optimizer=state.optimizer,
        batch=batch // shards,
        accumulated_gradients=state.gradients if phase.gradient_accumulation_steps > 1 else 0,
        gradients=state.gradients + gathered,
        activations=activations + gathered,
    )
