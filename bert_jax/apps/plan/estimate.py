"""Plans a run on a TPU slice, and suggests changes for a run that does not fit.

`make_plan` estimates memory, time, and cost of each phase. Each suggestion of `suggest` is planned
again and must fit.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from bert_jax.apps.plan.inputs import Inputs, make_inputs
from bert_jax.apps.plan.memory import Memory, StateBytes, phase_memory, state_bytes
from bert_jax.apps.plan.timing import StepTime, step_time
from bert_jax.config.config_lib import override
from bert_jax.config.experiment import Experiment
from bert_jax.errors import ConfigError
from bert_jax.parallel.tpu_slices import Slice, all_slices

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
        """Returns whether every phase fits in the usable memory."""
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
    data, fsdp, _ = experiment.mesh.axis_sizes(tpu_slice.devices, tpu_slice.hosts)
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


REMAT = ("objective.compute.remat=full",)
FSDP = ("mesh.data=1", "mesh.fsdp=-1")
_MICROBATCHES_TEXT = "{} microbatches per update"


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Describes a change after which the run fits.

    Attributes:
      description: the change in words.
      overrides: the change as arguments of --set; empty if the change is another slice.
      plan: the plan of the changed run.
    """

    description: str
    overrides: tuple[str, ...]
    plan: RunPlan


def suggest(plan: RunPlan, max_suggestions: int = 3) -> list[Suggestion]:
    """Returns up to `max_suggestions` changes that make a run fit, the cheapest first.

    Gradient accumulation, rematerialization, and FSDP are tried one by one, then in combination if
    none of them suffices. The cheapest slice on which the unchanged run fits is added. Cost is the
    on-demand list price of the hours without overlap.
    """
    found = _first_fitting(plan, _single_changes(plan)) or _first_fitting(
        plan, _combined_changes(plan)
    )
    other_slices = _other_slices(plan)
    found.sort(key=_cost_usd)
    return sorted([*found[: max_suggestions - len(other_slices)], *other_slices], key=_cost_usd)


def _cost_usd(suggestion: Suggestion) -> float:
    usd = suggestion.plan.usd(spot=False)
    return math.inf if usd is None else usd[1]


def _single_changes(plan: RunPlan) -> Iterator[Suggestion]:
    microbatch_counts = _microbatch_counts(plan)
    yield from (
        _make_suggestion(plan, _MICROBATCHES_TEXT.format(n), _accumulation_overrides(plan, n))
        for n in microbatch_counts
    )
    if plan.experiment.objective.compute.remat == "none":
        yield _make_suggestion(plan, "recompute layers (remat)", REMAT)
    if _is_replicated(plan):
        yield _make_suggestion(plan, "shard the state (FSDP)", FSDP)


def _combined_changes(plan: RunPlan) -> Iterator[Suggestion]:
    remat = () if plan.experiment.objective.compute.remat != "none" else REMAT
    for shard_state in ((), FSDP) if _is_replicated(plan) else ((),):
        for n in (1, *_microbatch_counts(plan)):
            accumulation = _accumulation_overrides(plan, n) if n > 1 else ()
            descriptions = [_MICROBATCHES_TEXT.format(n)] if accumulation else []
            descriptions += ["recompute layers"] if remat else []
            descriptions += ["shard the state"] if shard_state else []
            if len(descriptions) > 1:
                yield _make_suggestion(
                    plan, ", ".join(descriptions), (*accumulation, *remat, *shard_state)
                )


def _first_fitting(plan: RunPlan, suggestions: Iterator[Suggestion]) -> list[Suggestion]:
    """Returns the first suggestion of each kind that fits: the one with the fewest microbatches."""
    found: dict[str, Suggestion] = {}
    for suggestion in suggestions:
        # Descriptions of one kind differ only in the number of microbatches.
        without_digits = "".join(
            letter for letter in suggestion.description if not letter.isdigit()
        )
        if without_digits not in found and suggestion.plan.fits:
            found[without_digits] = suggestion
    return list(found.values())


def _make_suggestion(plan: RunPlan, description: str, overrides: tuple[str, ...]) -> Suggestion:
    experiment = override(plan.experiment, overrides)
    inputs = tuple(
        dataclasses.replace(phase.inputs, phase=changed)
        for phase, changed in zip(plan.phases, experiment.train.phases, strict=True)
    )
    changed = make_plan(experiment, plan.tpu_slice, mfu=plan.mfu, inputs=inputs)
    return Suggestion(description=description, overrides=overrides, plan=changed)


def _other_slices(plan: RunPlan) -> list[Suggestion]:
    """Returns the cheapest other slice on which the unchanged run fits, if any."""
    inputs, found = tuple(phase.inputs for phase in plan.phases), []
    for name, tpu_slice in all_slices().items():
        with contextlib.suppress(ConfigError):  # its devices do not divide the batch
            other_plan = make_plan(plan.experiment, tpu_slice, mfu=plan.mfu, inputs=inputs)
            if other_plan.fits:
                found.append(
                    Suggestion(description=f"another slice: {name}", overrides=(), plan=other_plan)
                )
    return sorted(found, key=_cost_usd)[:1]


def _is_replicated(plan: RunPlan) -> bool:
    """Returns whether every device holds the whole model."""
    return plan.experiment.mesh.axis_sizes(plan.tpu_slice.devices)[1:] == (1, 1)


def _phases_over_memory(plan: RunPlan) -> dict[int, PhasePlan]:
    return {i: p for i, p in enumerate(plan.phases) if p.memory.total > plan.usable_bytes}


def _microbatch_counts(plan: RunPlan) -> list[int]:
    """Returns the possible numbers of microbatches of the phases that do not fit, ascending."""
    per_device_batch_sizes = [
        phase.per_device_batch_size for phase in _phases_over_memory(plan).values()
    ]
    return [
        n
        for n in range(2, min(per_device_batch_sizes) + 1)
        if all(each % n == 0 for each in per_device_batch_sizes)
    ]


def _accumulation_overrides(plan: RunPlan, num_microbatches: int) -> tuple[str, ...]:
    return tuple(
        f"train.phases.{index}.gradient_accumulation_steps="
        f"{num_microbatches * phase.inputs.phase.gradient_accumulation_steps}"
        for index, phase in _phases_over_memory(plan).items()
    )
