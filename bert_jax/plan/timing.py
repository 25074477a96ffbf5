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
      sums: likewise the activations of layers that are cut (tensor); it grows with the batch.
      update: the least that the optimizer takes in HBM.
    """

    flops: float
    tokens: float
    compute: float
    links: float
    sums: float
    update: float

    @property
    def no_overlap(self) -> float:
        """Seconds when all of it follows one another."""
        return self.compute + self.links + self.sums + self.update

    @property
    def bounds(self) -> tuple[float, float]:
        """(compute alone, no overlap)."""
        return self.compute, self.no_overlap


def step_time(
    experiment: Experiment, inputs: Inputs, state: StateBytes, where: Slice, mfu: float
) -> StepTime:
    """The time of one update of a phase."""
    program = experiment.program
    flops = tokens = 0.0
    for sizes, share in zip(inputs.shapes, inputs.shares, strict=True):
        flops += share * model_flops(experiment, inputs, sizes, state.lowest)
        tokens += share * inputs.texts * sizes["L"]
    # The forward pass is a third of the FLOPs.
    again = 1.0 if isinstance(program.compute.remat, SaveAll) else 4 / 3
    moved = 2 * (state.parameters + state.optimizer) + state.gradients
    return StepTime(
        flops=flops,
        tokens=tokens,
        compute=again * flops / (mfu * where.bf16_flops),
        links=_links(experiment, inputs, state, where),
        sums=_sums(experiment, where, tokens),
        update=moved / where.generation.device_bandwidth,
    )


def link_axes(where: Slice) -> int:
    """Along how many axes a chip of the slice has neighbours: 2 in a 4x4 and in a 2x2x1."""
    return sum(size != "1" for size in where.topology.split("x"))


def model_flops(
    experiment: Experiment, inputs: Inputs, sizes: dict[str, int], lowest: int
) -> float:
    """`step_flops` of one of the inputs' `shapes`; `lowest` as in `StateBytes`."""
    return step_flops(
        experiment.program,
        inputs.phase,
        sizes["L"],
        choices=sizes.get("A", 1),
        encoder=experiment.train.tuning.encoder,
        lowest=lowest,
    )


def _links(experiment: Experiment, inputs: Inputs, state: StateBytes, where: Slice) -> float:
    data, fsdp, _ = _crossings(experiment, where)
    # All but a thousandth is matrices, which are what `exchange` is for.
    width = 0.5 if experiment.mesh.exchange == "bfloat16" else 1.0
    # Each device holds 1 / fsdp of what is gathered; gradients are summed for every microbatch.
    shards = experiment.mesh.sizes(where.devices)[1]
    gathered = shards * (state.parameters + 2 * inputs.phase.accumulate * state.gradients)
    crossing = width * (2 * data * state.gradients + fsdp * gathered)
    return crossing / (link_axes(where) * where.generation.link_bytes_per_second)


def _sums(experiment: Experiment, where: Slice, tokens: float) -> float:
    if isinstance(experiment.train.tuning.encoder, ReadOnce):
        return 0.0
    model, (data, fsdp, _) = experiment.program.model, experiment.mesh.sizes(where.devices)
    activation = tokens / (data * fsdp) * model.hidden_size * itemsize(experiment.program)
    crossing = 4 * model.num_hidden_layers * 2 * _crossings(experiment, where)[2] * activation
    return crossing / where.generation.link_bytes_per_second


def _crossings(experiment: Experiment, where: Slice) -> list[float]:
    """What leaves a chip of each byte that its devices exchange over data, fsdp and tensor."""
    of_chip = here = where.generation.devices_per_chip
    found = []
    # Devices of one chip are neighbours on the mesh's last axes.
    for size in reversed(experiment.mesh.sizes(where.devices)):
        together = math.gcd(size, here)
        chips, here = size // together, here // together
        found.append(of_chip // together * (chips - 1) / chips)
    return found[::-1]


def least_batch(time: StepTime, batch_size: int, parts: int, share: float = 0.1) -> int | None:
    """The rows at which all but compute takes at most `share` of it; a multiple of `parts`.

    None if no number of rows is enough, as `sums` grow with them.
    """
    room = share * time.compute - time.sums
    if room <= 0:
        return None
    return max(1, math.ceil(batch_size * (time.links + time.update) / room / parts)) * parts
