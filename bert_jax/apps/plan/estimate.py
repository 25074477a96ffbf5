"""Plans a run on a TPU slice: estimates memory, time, and cost of each phase by formula.

`make_plan` is the entry point. Compiling the program gives better estimates (`plan/xla/`); the
`inputs` of each phase are the fields and shapes to compile for.
"""

from dataclasses import dataclass

from bert_jax.apps.plan.device_memory import Memory, phase_memory
from bert_jax.apps.plan.inputs import Inputs, make_inputs
from bert_jax.apps.plan.state_bytes import StateBytes, state_bytes
from bert_jax.apps.plan.timing import StepTime, step_time
from bert_jax.config.experiment import Experiment
from bert_jax.errors import ConfigError
from bert_jax.parallel.tpu_slices import Slice

DEFAULT_MFU = 0.4
"""The default model FLOPs utilization: the assumed fraction of the chips' peak FLOP/s."""

MEMORY_MARGIN = 0.08
"""The fraction of device memory to leave free for collectives and fragmentation."""

Bounds = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class PhasePlan:
    """Holds the estimates of one phase on one slice."""

    inputs: Inputs
    memory: Memory
    step: StepTime
    per_device_batch_size: int  # of a microbatch

    @property
    def seconds(self) -> Bounds:
        """Returns the seconds of all steps: (compute only, no overlap)."""
        low, high = self.step.bounds
        return self.inputs.phase.steps * low, self.inputs.phase.steps * high


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Holds the estimates of a whole run on one slice."""

    experiment: Experiment
    tpu_slice: Slice
    mfu: float
    state: StateBytes
    phases: tuple[PhasePlan, ...]

    @property
    def memory(self) -> Memory:
        """Returns the memory of the phase that needs the most."""
        return max((phase.memory for phase in self.phases), key=lambda memory: memory.total)

    @property
    def usable_bytes(self) -> int:
        """Returns the bytes of a device that a run may use: all except the margin."""
        return int((1 - MEMORY_MARGIN) * self.tpu_slice.device_hbm_gib * 2**30)

    @property
    def fits(self) -> bool:
        """Returns whether every phase fits in the usable memory, by the formula."""
        return self.memory.total <= self.usable_bytes

    @property
    def hours(self) -> Bounds:
        """Returns the hours of all phases: (compute only, no overlap)."""
        low, high = zip(*(phase.seconds for phase in self.phases), strict=True)
        return sum(low) / 3600, sum(high) / 3600

    def usd(self, *, spot: bool) -> Bounds | None:
        """Returns the (lower, upper) bound of the run's cost in USD; None if there is no price.

        The cost is `hours` times the list price of the slice: the spot price if `spot`, else the
        on-demand price. Google publishes no price for some slices.
        """
        price = self.tpu_slice.usd_per_hour(spot=spot)
        return None if price is None else (price * self.hours[0], price * self.hours[1])


def make_plan(
    experiment: Experiment,
    tpu_slice: Slice,
    *,
    mfu: float = DEFAULT_MFU,
    inputs: tuple[Inputs, ...] | None = None,
) -> RunPlan:
    """Estimates a run on a slice.

    Args:
      experiment: the run's config.
      tpu_slice: the slice to plan for.
      mfu: the assumed model FLOPs utilization, above 0 and at most 1.
      inputs: the result of `make_inputs`, if the caller has it already; for fine-tuning it is
        expensive, because it reads the labeled data.

    Raises:
      ConfigError: the mesh does not fit the slice, a batch does not divide evenly, or mfu is out of
        range.
      UserError: the labeled data cannot be read.
    """
    if not 0 < mfu <= 1:
        raise ConfigError(f"--mfu {mfu}: expected a fraction of the peak, above 0 and at most 1")
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
    """Checks that every batch size divides evenly over the devices that hold different examples.

    Raises:
      ConfigError: one does not; the message names the nearest sizes that do.
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
            microbatches = (
                f", times {accumulation_steps} microbatches" if accumulation_steps > 1 else ""
            )
            raise ConfigError(
                f"{field} is {size}, expected a multiple of {divisor} on {tpu_slice.name} "
                f"(mesh data {data} x fsdp {fsdp}{microbatches}); the nearest is {nearest}: "
                f"--set {field}={larger}"
            )
