"""A run on a slice, before it is paid for: memory, time and cost of each phase, by formula.

`make_plan` is the one door. A compiled program says the same better: it can stand beside the
estimate of its phase, whose `inputs` have the fields and shapes to compile for.
"""

from dataclasses import dataclass

from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment
from bert_jax.plan.inputs import Inputs, make_inputs
from bert_jax.plan.memory import Memory, phase_memory
from bert_jax.plan.slices import Slice
from bert_jax.plan.state import StateBytes, state_bytes
from bert_jax.plan.timing import StepTime, step_time

MFU = 0.4
"""The share of the chips' peak that is assumed where none is stated."""

MARGIN = 0.08
"""Share of a device's memory to be left free: collectives and fragmentation take some of it."""

Bounds = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class PhasePlan:
    """One phase on one slice."""

    inputs: Inputs
    memory: Memory
    step: StepTime
    rows_per_device: int  # of a microbatch

    @property
    def seconds(self) -> Bounds:
        """All steps of the phase, (compute alone, no overlap)."""
        low, high = self.step.bounds
        return self.inputs.phase.steps * low, self.inputs.phase.steps * high


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole run on one slice."""

    experiment: Experiment
    where: Slice
    mfu: float
    state: StateBytes
    phases: tuple[PhasePlan, ...]

    @property
    def memory(self) -> Memory:
        """Of the phase that needs most."""
        return max((phase.memory for phase in self.phases), key=lambda memory: memory.total)

    @property
    def room(self) -> int:
        """Bytes of a device that a run may use: all but the margin."""
        return int((1 - MARGIN) * self.where.device_hbm_gib * 2**30)

    @property
    def fits(self) -> bool:
        """Whether every phase does, by the estimate and with the margin."""
        return self.memory.total <= self.room

    @property
    def hours(self) -> Bounds:
        """All phases, (compute alone, no overlap)."""
        low, high = zip(*(phase.seconds for phase in self.phases), strict=True)
        return sum(low) / 3600, sum(high) / 3600

    def usd(self, *, spot: bool) -> Bounds | None:
        """List price of these hours; None where there is none."""
        price = self.where.usd_per_hour(spot=spot)
        return None if price is None else (price * self.hours[0], price * self.hours[1])


def make_plan(
    experiment: Experiment,
    where: Slice,
    *,
    mfu: float = MFU,
    inputs: tuple[Inputs, ...] | None = None,
) -> Plan:
    """The plan of a run on a slice.

    Args:
      inputs: those of `make_inputs`, where they are at hand: labelled data is read for them.

    Raises:
      ConfigError: the mesh does not fit the slice, a batch does not divide, or mfu is no share.
      UserError: labelled data cannot be read.
    """
    if not 0 < mfu <= 1:
        raise ConfigError(f"--mfu {mfu}: expected a share of the peak, above 0 and at most 1")
    check_rows(experiment, where)
    state = state_bytes(experiment, where.devices)
    data, fsdp, _ = experiment.mesh.sizes(where.devices)
    phases = tuple(
        PhasePlan(
            inputs=each,
            memory=phase_memory(experiment, each, state, where),
            step=step_time(experiment, each, state, where, mfu),
            rows_per_device=each.phase.batch_size // (each.phase.accumulate * data * fsdp),
        )
        for each in inputs or make_inputs(experiment)
    )
    return Plan(experiment=experiment, where=where, mfu=mfu, state=state, phases=phases)


def check_rows(experiment: Experiment, where: Slice) -> None:
    """Raises a ConfigError unless every batch gives each device as many rows as the others.

    It names the nearest sizes below and above that do, and what to set.
    """
    data, fsdp, _ = experiment.mesh.sizes(where.devices)
    shards = data * fsdp
    asked = [
        (f"train.phases.{index}.batch_size", phase.batch_size, phase.accumulate)
        for index, phase in enumerate(experiment.train.phases)
    ]
    evaluation = experiment.train.evaluation
    asked += [("train.evaluation.batch_size", evaluation.batch_size, 1)] if evaluation else []
    for field, size, accumulate in asked:
        parts = shards * accumulate
        if size % parts:
            below, above = size // parts * parts, -(-size // parts) * parts
            nearest = f"{below} or {above}" if below else f"{above}"
            each = f"{accumulate} microbatches on {shards}" if accumulate > 1 else f"{shards}"
            raise ConfigError(
                f"{field} is {size}, which {where.name} cannot share evenly: {each} groups of "
                f"devices hold rows (mesh data {data} x fsdp {fsdp}). The nearest that can: "
                f"{nearest} (--set {field}={above})"
            )
