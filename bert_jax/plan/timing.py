"""How long an update takes on a slice, between two bounds, and what the run then costs.

Compute alone: the model's FLOPs at a stated share of the chips' peak (MFU). The share is an
assumption, which only a run on the slice or its compiled program can replace. Layers that are
computed again in the backward pass (remat) add their forward pass to it.

No overlap: to that are added, one after another, what cannot be avoided but may be hidden:

- the links. Summing G bytes over n chips, and giving all of them the sum, moves 2 (n - 1) / n G
  bytes out of every chip (Patarasuk and Yuan 2009). Up to 16 chips a slice has no wrap-around
  links, so a corner chip has one link along each axis of the topology, and the others wait for it.
  Sharded parameters (fsdp) are gathered too, once, and their gradients summed for each of m
  microbatches: (1 + 2 m) (n - 1) / n. All of it is half as much where `mesh.exchange` is bfloat16.
  Devices on one chip exchange for nothing, and share its links for what is apart;
- the sums of activations of layers cut in t (tensor), twice in each direction, over one axis. They
  alone grow with the batch;
- the update: reading and writing parameters and optimizer state and reading gradients, in HBM.

If the MFU is right the truth lies between the two; evaluation, checkpoints, compilation and waiting
for data are in neither.
"""

import math
from dataclasses import dataclass

from bert_jax.experiment import Experiment
from bert_jax.hardware.tpu_slices import Slice
from bert_jax.models.config import NoRemat
from bert_jax.plan.activations import itemsize
from bert_jax.plan.inputs import Inputs
from bert_jax.plan.state_bytes import StateBytes
from bert_jax.train.flops import step_flops
from bert_jax.tuning.config import CachedFeatures


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of one update, the mean over a phase's batches.

    Attributes:
      flops: model FLOPs over all chips; nothing for what is computed twice.
      tokens: input positions, padding included.
      compute: seconds of the FLOPs at the stated MFU.
      links: the least that gradients and sharded parameters take between the chips.
      sums: likewise the activations of layers that are cut (tensor); it grows with the batch.
      update: the least that the optimizer takes in HBM.
    """

    flops: float
    tokens: float
    compute: float
    gradient_comm: float
    activation_comm: float
    optimizer: float

    @property
    def no_overlap(self) -> float:
        """Seconds when all of it follows one another."""
        return self.compute + self.gradient_comm + self.activation_comm + self.optimizer

    @property
    def bounds(self) -> tuple[float, float]:
        """(compute alone, no overlap)."""
        return self.compute, self.no_overlap


def step_time(
    experiment: Experiment, inputs: Inputs, state: StateBytes, tpu_slice: Slice, mfu: float
) -> StepTime:
    """The time of one update of a phase."""
    objective = experiment.objective
    flops = tokens = 0.0
    for sizes, fraction in zip(inputs.shapes, inputs.step_fractions, strict=True):
        flops += fraction * model_flops(experiment, inputs, sizes, state.lowest_trainable_layer)
        tokens += fraction * inputs.num_sequences * sizes["L"]
    # The forward pass is a third of the FLOPs.
    remat_factor = 1.0 if isinstance(objective.compute.remat, NoRemat) else 4 / 3
    hbm_bytes = 2 * (state.parameters + state.optimizer) + state.gradients
    return StepTime(
        flops=flops,
        tokens=tokens,
        compute=remat_factor * flops / (mfu * tpu_slice.bf16_flops),
        gradient_comm=_gradient_comm(experiment, inputs, state, tpu_slice),
        activation_comm=_activation_comm(experiment, tpu_slice, tokens),
        optimizer=hbm_bytes / tpu_slice.generation.device_bandwidth,
    )


def link_axes(tpu_slice: Slice) -> int:
    """Along how many axes a chip of the slice has neighbours: 2 in a 4x4 and in a 2x2x1."""
    return sum(size != "1" for size in tpu_slice.topology.split("x"))


def model_flops(
    experiment: Experiment, inputs: Inputs, sizes: dict[str, int], lowest_trainable_layer: int
) -> float:
    """`step_flops` of one of the inputs' `shapes`; `lowest` as in `StateBytes`."""
    return step_flops(
        experiment.objective,
        inputs.phase,
        sizes["L"],
        num_choices=sizes.get("A", 1),
        features=experiment.train.tuning.features,
        lowest_trainable_layer=lowest_trainable_layer,
    )


def _gradient_comm(
    experiment: Experiment, inputs: Inputs, state: StateBytes, tpu_slice: Slice
) -> float:
    data, fsdp, _ = _bytes_leaving_chip(experiment, tpu_slice)
    # All but a thousandth is matrices, which are what `exchange` is for.
    dtype_scale = 0.5 if experiment.mesh.communication_dtype == "bfloat16" else 1.0
    # Each device holds 1 / fsdp of what is gathered; gradients are summed for every microbatch.
    shards = experiment.mesh.axis_sizes(tpu_slice.devices)[1]
    gathered = shards * (
        state.parameters + 2 * inputs.phase.gradient_accumulation_steps * state.gradients
    )
    link_bytes = dtype_scale * (2 * data * state.gradients + fsdp * gathered)
    return link_bytes / (link_axes(tpu_slice) * tpu_slice.generation.link_bytes_per_second)


def _activation_comm(experiment: Experiment, tpu_slice: Slice, tokens: float) -> float:
    if isinstance(experiment.train.tuning.features, CachedFeatures):
        return 0.0
    model, (data, fsdp, _) = (
        experiment.objective.model,
        experiment.mesh.axis_sizes(tpu_slice.devices),
    )
    activation = tokens / (data * fsdp) * model.hidden_size * itemsize(experiment.objective)
    link_bytes = (
        4 * model.num_hidden_layers * 2 * _bytes_leaving_chip(experiment, tpu_slice)[2] * activation
    )
    return link_bytes / tpu_slice.generation.link_bytes_per_second


def _bytes_leaving_chip(experiment: Experiment, tpu_slice: Slice) -> list[float]:
    """What leaves a chip of each byte that its devices exchange over data, fsdp and tensor."""
    devices_per_chip = devices_left = tpu_slice.generation.devices_per_chip
    found = []
    # Devices of one chip are neighbours on the mesh's last axes.
    for size in reversed(experiment.mesh.axis_sizes(tpu_slice.devices)):
        devices_on_chip = math.gcd(size, devices_left)
        chips, devices_left = size // devices_on_chip, devices_left // devices_on_chip
        found.append(devices_per_chip // devices_on_chip * (chips - 1) / chips)
    return found[::-1]


def min_batch_size(
    step: StepTime, batch_size: int, multiple: int, max_fraction: float = 0.1
) -> int | None:
    """The rows at which all but compute takes at most `share` of it; a multiple of `parts`.

    None if no number of rows is enough, as `sums` grow with them.
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
