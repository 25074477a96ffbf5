"""How long an update takes on a slice, between two bounds, and what the run then costs.

Compute alone: the model's FLOPs at a stated share of the chips' peak (MFU). The share is an
assumption, which only a run on the slice or its compiled program can replace. Layers that are
computed again in the backward pass (remat) add their forward pass to it.

No overlap: to that are added, one after another, what cannot be avoided but may be hidden:

- the links. Summing G bytes over n chips, and giving all of them the sum, moves 2 (n - 1) / n G
  bytes out of every chip (Patarasuk and Yuan 2009). Up to 16 chips a slice has no wrap-around
  links, so a corner chip has one link along each axis of the topology, and the others wait for it.
  Sharded parameters (fsdp) are gathered too, once: 3 (n - 1) / n. All of it is half as much where
  `mesh.exchange` is bfloat16. Layers cut in t (tensor) sum their activations twice in each
  direction, over one axis. Devices on one chip exchange for nothing;
- the update: reading and writing parameters and optimizer state and reading gradients, in HBM.

If the MFU is right the truth lies between the two; evaluation, checkpoints, compilation and waiting
for data are in neither.
"""

import math
from dataclasses import dataclass

from bert_jax.experiment import Experiment
from bert_jax.models.config import SaveAll
from bert_jax.plan.activations import itemsize
from bert_jax.plan.inputs import Inputs
from bert_jax.plan.slices import Slice
from bert_jax.plan.state import StateBytes
from bert_jax.train.flops import step_flops
from bert_jax.tuning.config import ReadOnce


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of one update, the mean over a phase's batches.

    Attributes:
      flops: model FLOPs over all chips; nothing for what is computed twice.
      tokens: input positions, padding included.
      compute: seconds of the FLOPs at the stated MFU.
      links: the least that gradients and sharded parameters take between the chips.
      update: the least that the optimizer takes in HBM.
    """

    flops: float
    tokens: float
    compute: float
    links: float
    update: float

    @property
    def no_overlap(self) -> float:
        """Seconds when compute, links and update follow one another."""
        return self.compute + self.links + self.update

    @property
    def bounds(self) -> tuple[float, float]:
        """(compute alone, no overlap)."""
        return self.compute, self.no_overlap


def step_time(
    experiment: Experiment, inputs: Inputs, state: StateBytes, where: Slice, mfu: float
) -> StepTime:
    """The time of one update of a phase."""
    program, phase, encoder = experiment.program, inputs.phase, experiment.train.tuning.encoder
    choices = inputs.shapes[-1].get("A", 1)
    flops = tokens = 0.0
    for sizes, share in zip(inputs.shapes, inputs.shares, strict=True):
        length = sizes["L"]
        flops += share * choices * step_flops(program, phase, length, encoder=encoder)
        tokens += share * inputs.texts * length
    # The forward pass is a third of the FLOPs.
    again = 1.0 if isinstance(program.compute.remat, SaveAll) else 4 / 3
    moved = 2 * (state.parameters + state.optimizer) + state.gradients
    return StepTime(
        flops=flops,
        tokens=tokens,
        compute=again * flops / (mfu * where.bf16_flops),
        links=_links(experiment, inputs, state, where, tokens),
        update=moved / where.generation.device_bandwidth,
    )


def link_axes(where: Slice) -> int:
    """Along how many axes a chip of the slice has neighbours: 2 in a 4x4 and in a 2x2x1."""
    return sum(size != "1" for size in where.topology.split("x"))


def _links(
    experiment: Experiment, inputs: Inputs, state: StateBytes, where: Slice, tokens: float
) -> float:
    data, fsdp, tensor = experiment.mesh.sizes(where.devices)
    link, axes = where.generation.link_bytes_per_second, link_axes(where)
    # Devices of one chip are neighbours on the mesh's last axes, and count as one there.
    here = where.generation.devices_per_chip
    tensor_chips, here = _over_chips(tensor, here)
    fsdp_chips, here = _over_chips(fsdp, here)
    data_chips, _ = _over_chips(data, here)
    summed = 2 * _share(data_chips) * state.gradients
    # Each device holds 1 / fsdp of what is gathered; gradients are summed for every microbatch.
    crossing = state.parameters + 2 * inputs.phase.accumulate * state.gradients
    gathered = _share(fsdp_chips) * fsdp * crossing
    # All but a thousandth is matrices, which are what `exchange` is for.
    width = 0.5 if experiment.mesh.exchange == "bfloat16" else 1.0
    seconds = width * (summed + gathered) / (axes * link)
    if tensor_chips > 1 and not isinstance(experiment.train.tuning.encoder, ReadOnce):
        model = experiment.program.model
        activation = tokens / (data * fsdp) * model.hidden_size * itemsize(experiment.program)
        sums = 4 * model.num_hidden_layers
        seconds += sums * 2 * _share(tensor_chips) * activation / link
    return seconds


def _over_chips(size: int, here: int) -> tuple[int, int]:
    """How many chips a mesh axis spans, and how many devices of a chip the next one still has."""
    together = math.gcd(size, here)
    return size // together, here // together


def _share(chips: int) -> float:
    return (chips - 1) / chips


def least_batch(time: StepTime, batch_size: int, parts: int, share: float = 0.1) -> int:
    """The rows at which links and update take at most `share` of compute; a multiple of parts."""
    if not time.compute:
        return batch_size
    factor = (time.links + time.update) / (share * time.compute)
    return max(1, math.ceil(batch_size * factor / parts)) * parts
