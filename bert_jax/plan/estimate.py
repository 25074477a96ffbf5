"""A run on a slice, before it is paid for: memory, time and cost of each phase, by formula.

`make_plan` is the one door. A compiled program says the same better: it can stand beside the
estimate of its phase, whose `inputs` have the fields and shapes to compile for.
"""

from dataclasses import dataclass

from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment
from bert_jax.hardware.tpu_slices import Slice
from bert_jax.plan.device_memory import Memory, phase_memory
from bert_jax.plan.inputs import Inputs, make_inputs
from bert_jax.plan.state_bytes import StateBytes, state_bytes
from bert_jax.plan.timing import StepTime, step_time

DEFAULT_MFU = 0.4
"""The share of the chips' peak that is assumed where none is stated."""

MEMORY_MARGIN = 0.08
"""Share of a device's memory to be left free: collectives and fragmentation take some of it."""

Bounds = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class PhasePlan:
    """One phase on one slice."""

    inputs: Inputs
    memory: Memory
    step: StepTime
    per_device_batch_size: int  # of a microbatch

    @property
    def seconds(self) -> Bounds:
        """All steps of the phase, (compute alone, no overlap)."""
        low, high = self.step.bounds
        return self.inputs.phase.steps * low, self.inputs.phase.steps * high


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A whole run on one slice."""

    experiment: Experiment
    tpu_slice: Slice
    mfu: float
    state: StateBytes
    phases: tuple[PhasePlan, ...]

    @property
    def memory(self) -> Memory:
        """Of the phase that needs most."""
        return max((phase.memory for phase in self.phases), key=lambda memory: memory.total)

    @property
    def usable_bytes(self) -> int:
        """Bytes of a device that a run may use: all but the margin."""
        return int((1 - MEMORY_MARGIN) * self.tpu_slice.device_hbm_gib * 2**30)

    @property
    def fits(self) -> bool:
        """Whether every phase does, by the estimate and with the margin."""
        return self.memory.total <= self.usable_bytes

    @property
    def hours(self) -> Bounds:
        """All phases, (compute alone, no overlap)."""
        low, high = zip(*(phase.seconds for phase in self.phases), strict=True)
        return sum(low) / 3600, sum(high) / 3600

    def usd(self, *, spot: bool) -> Bounds | None:
        """List price of these hours; None where there is none."""
        price = self.tpu_slice.usd_per_hour(spot=spot)
        return None if price is None else (price * self.hours[0], price * self.hours[1])


def make_plan(
    experiment: Experiment,
    tpu_slice: Slice,
    *,
    mfu: float = DEFAULT_MFU,
    inputs: tuple[Inputs, ...] | None = None,
) -> RunPlan:
    """The plan of a run on a slice.

    Args:
      inputs: those of `make_inputs`, where they are at hand: labelled data is read for them.

    Raises:
      ConfigError: the mesh does not fit the slice, a batch does not divide, or mfu is no share.
      UserError: labelled data cannot be read.
    """
    if not 0 < mfu <= 1:
        raise ConfigError(f"--mfu {mfu}: expected a share of the peak, above 0 and at most 1")
    check_batch_sizes(experiment, tpu_slice)
    state = state_bytes(experiment, tpu_slice.devices)
    data, fsdp, _ = experiment.mesh.axis_sizes(tpu_slice.devices)
    phases = tuple(
        PhasePlan(
            inputs=each,
            memory=phase_memory(experiment, each, state, tpu_slice),
            step=step_time(experiment, each, state, tpu_slice, mfu),
            per_device_batch_size=each.phase.batch_size
            // (each.phase.gradient_accumulation_steps * data * fsdp),
        )
        for each in inputs or make_inputs(experiment)
    )
    return RunPlan(experiment=experiment, tpu_slice=tpu_slice, mfu=mfu, state=state, phases=phases)


def check_batch_sizes(experiment: Experiment, tpu_slice: Slice) -> None:
    """Raises a ConfigError unless every batch gives each device as many rows as the others.

    It names the nearest sizes below and above that do, and what to set.
    """
    data, fsdp, _ = experiment.mesh.axis_sizes(tpu_slice.devices)
    shards = data * fsdp
    batch_sizes = [
        (f"train.phases.{index}.batch_size", phase.batch_size, phase.gradient_accumulation_steps)
        for index, phase in enumerate(experiment.train.phases)
    ]
    evaluation = experiment.train.evaluation
    batch_sizes += [("train.evaluation.batch_size", evaluation.batch_size, 1)] if evaluation else []
    for field, size, accumulation_steps in batch_sizes:
        divisor = shards * accumulation_steps
        if size % divisor:
            smaller, larger = size // divisor * divisor, -(-size // divisor) * divisor
            nearest = f"{smaller} or {larger}" if smaller else f"{larger}"
            each = (
                f"{accumulation_steps} microbatches on {shards}"
                if accumulation_steps > 1
                else f"{shards}"
            )
            raise ConfigError(
                f"{field} is {size}, which {tpu_slice.name} cannot share evenly: {each} groups of "
                f"devices hold rows (mesh data {data} x fsdp {fsdp}). The nearest that can: "
                f"{nearest} (--set {field}={larger})"
            )
