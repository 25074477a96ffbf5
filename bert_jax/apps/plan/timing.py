"""Estimates the time of a training step on a TPU slice as a lower and an upper bound.

The lower bound is compute only: the model's FLOPs at an assumed fraction of the chips' peak (model
FLOPs utilization, MFU). Only a run on the slice, or its compiled program, can replace that
assumption. Rematerialization adds one more forward pass.

The upper bound adds, without any overlap, the costs that are unavoidable but may be hidden:

- Gradient communication. An all-reduce of G bytes over n chips sends 2 (n - 1) / n G bytes from
  every chip (Patarasuk and Yuan 2009). Along an axis that is no ring, as in slices of up to 16
  chips, the last chip has only one link, and the others wait for it (`Slice.min_links`). FSDP
  parameters are also gathered once, and their gradients are summed for each of m microbatches:
  (1 + 2 m) (n - 1) / n. All of this is halved if `mesh.communication_dtype` is bfloat16. Devices on
  the same chip exchange data for free, but share the chip's links.
- Activation communication of tensor parallelism: two all-reduces per layer in each direction, over
  one axis of the topology, by one link, even if it is a ring; three in a decoder layer with
  cross-attention, and one for the gradient of the encoder's output. It is the only part that grows
  with the batch.
- The optimizer: reads and writes parameters and optimizer state and reads gradients, all in HBM.

If the assumed MFU is right, the true time lies between the bounds. Neither includes evaluation,
checkpoints, compilation, or waiting for data.
"""

import math
from dataclasses import dataclass

import numpy as np

from bert_jax.apps.plan.inputs import Inputs
from bert_jax.apps.plan.memory import StateBytes
from bert_jax.config.experiment import Experiment
from bert_jax.objectives.base import BatchSizes
from bert_jax.objectives.make import make_objective
from bert_jax.parallel.tpu_slices import Slice
from bert_jax.train.flops import step_flops


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Holds the time of one step in seconds, averaged over a phase's batches.

    Attributes:
      flops: model FLOPs over all chips; recomputation is not counted.
      tokens: input positions, including padding; those of the encoder, if there are two stacks.
      compute: the seconds of the FLOPs at the assumed MFU.
      gradient_comm: the minimal seconds to communicate gradients and FSDP parameters.
      activation_comm: the minimal seconds to communicate activations of tensor-parallel layers; it
        grows with the batch.
      optimizer: the minimal seconds of the optimizer's HBM traffic.
    """

    flops: float
    tokens: float
    compute: float
    gradient_comm: float
    activation_comm: float
    optimizer: float

    @property
    def no_overlap(self) -> float:
        """Returns the seconds if nothing overlaps."""
        return self.compute + self.gradient_comm + self.activation_comm + self.optimizer

    @property
    def bounds(self) -> tuple[float, float]:
        """Returns the bounds (compute only, no overlap)."""
        return self.compute, self.no_overlap


def step_time(
    experiment: Experiment, inputs: Inputs, state: StateBytes, tpu_slice: Slice, mfu: float
) -> StepTime:
    """Estimates the time of one step of a phase."""
    objective = experiment.objective
    made = make_objective(objective)
    flops = tokens = num_vectors = 0.0
    for sizes, fraction in zip(inputs.shapes, inputs.step_fractions, strict=True):
        flops += fraction * model_flops(experiment, inputs, sizes, state.lowest_trainable_layer)
        batch_sizes = BatchSizes.from_dims({**inputs.phase.sizes, **sizes})
        tokens += fraction * made.encoded_positions(batch_sizes)
        num_vectors += fraction * made.summed_vectors(batch_sizes)
    # The forward pass is a third of the FLOPs, and remat computes it twice.
    remat_factor = 1.0 if objective.compute.remat == "none" else 4 / 3
    hbm_bytes = 2 * (state.parameters + state.optimizer) + state.gradients
    return StepTime(
        flops=flops,
        tokens=tokens,
        compute=remat_factor * flops / (mfu * tpu_slice.bf16_flops),
        gradient_comm=_gradient_comm(experiment, inputs, state, tpu_slice),
        activation_comm=_activation_comm(experiment, tpu_slice, num_vectors),
        optimizer=hbm_bytes / tpu_slice.generation.device_bandwidth,
    )


def model_flops(
    experiment: Experiment, inputs: Inputs, sizes: dict[str, int], lowest_trainable_layer: int
) -> float:
    """Returns the model FLOPs of a step with one of the inputs' `shapes`, over all devices."""
    return step_flops(
        experiment.objective,
        inputs.phase,
        sizes,
        tuning=experiment.train.tuning,
        lowest_trainable_layer=lowest_trainable_layer,
    )


def _gradient_comm(
    experiment: Experiment, inputs: Inputs, state: StateBytes, tpu_slice: Slice
) -> float:
    data, fsdp, _ = _bytes_leaving_chip(experiment, tpu_slice)
    # communication_dtype applies to matrices only, but they are 99.9 % of the parameters.
    dtype_scale = 0.5 if experiment.mesh.communication_dtype == "bfloat16" else 1.0
    # `state` counts the 1 / fsdp that a device stores, so multiply by fsdp for what is gathered.
    shards = experiment.mesh.axis_sizes(tpu_slice.devices)[1]
    gathered = shards * (
        state.parameters + 2 * inputs.phase.gradient_accumulation_steps * state.gradients
    )
    link_bytes = dtype_scale * (2 * data * state.gradients + fsdp * gathered)
    return link_bytes / (tpu_slice.min_links * tpu_slice.generation.link_bytes_per_second)


def _activation_comm(experiment: Experiment, tpu_slice: Slice, num_vectors: float) -> float:
    if experiment.train.tuning.features == "cached":
        return 0.0
    objective, (data, fsdp, _) = (
        experiment.objective,
        experiment.mesh.axis_sizes(tpu_slice.devices),
    )
    itemsize = np.dtype(objective.compute.dtype).itemsize
    reduced_bytes = num_vectors / (data * fsdp) * objective.model.hidden_size * itemsize
    link_bytes = 2 * _bytes_leaving_chip(experiment, tpu_slice)[2] * reduced_bytes
    return link_bytes / tpu_slice.generation.link_bytes_per_second


def _bytes_leaving_chip(experiment: Experiment, tpu_slice: Slice) -> list[float]:
    """Returns how many bytes leave a chip per exchanged byte on the axes data, fsdp, and tensor."""
    devices_per_chip = devices_left = tpu_slice.generation.devices_per_chip
    found = []
    # Devices of one chip are neighbors on the mesh's last axes.
    for size in reversed(experiment.mesh.axis_sizes(tpu_slice.devices)):
        devices_on_chip = math.gcd(size, devices_left)
        chips, devices_left = size // devices_on_chip, devices_left // devices_on_chip
        found.append(devices_per_chip // devices_on_chip * (chips - 1) / chips)
    return found[::-1]


def min_batch_size(
    step: StepTime, batch_size: int, multiple: int, max_fraction: float = 0.1
) -> int | None:
    """Returns the batch size from which communication and optimizer are small next to compute.

    They then take at most `max_fraction` of the compute time. The result is a multiple of
    `multiple`, or None if no batch size suffices because activation communication grows with it.
    """
    allowed_seconds = max_fraction * step.compute - step.activation_comm
    if allowed_seconds <= 0:
        return None
    return (
        max(
            1,
            math.ceil(
                batch_size * (step.gradient_comm + step.optimizer) / allowed_seconds / multiple
            ),
        )
        * multiple
    )
