"""What to change when a run does not fit: each way is planned like the run itself, and must fit."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from bert_jax.config_lib import override
from bert_jax.errors import ConfigError
from bert_jax.hardware.tpu_slices import all_slices
from bert_jax.models.config import NoRemat
from bert_jax.plan.estimate import PhasePlan, RunPlan, make_plan

REMAT = ('objective.compute.remat={"type": "FullRemat"}',)
FSDP = ("mesh.data=1", "mesh.fsdp=-1")
_MICROBATCHES_TEXT = "{} microbatches in each update"


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A change after which the run fits.

    Attributes:
      what: in words.
      overrides: for --set.
      plan: of the changed run; on another slice where the change is that.
    """

    description: str
    overrides: tuple[str, ...]
    plan: RunPlan


def suggest(plan: RunPlan, max_suggestions: int = 3) -> list[Suggestion]:
    """Up to so many changes that make a run fit, the cheapest first.

    Microbatches, recomputation and sharded state are tried by themselves, and together if none of
    them is enough; beside them stands the cheapest slice on which the run fits as it is. Cost is
    the list price on demand of the hours with no overlap.
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
    if isinstance(plan.experiment.objective.compute.remat, NoRemat):
        yield _make_suggestion(plan, "layers computed again in the backward pass", REMAT)
    if _is_replicated(plan):
        yield _make_suggestion(plan, "parameters and optimizer state shared out", FSDP)


def _combined_changes(plan: RunPlan) -> Iterator[Suggestion]:
    remat = () if plan.experiment.objective.compute.remat != NoRemat() else REMAT
    for shard_state in ((), FSDP) if _is_replicated(plan) else ((),):
        for n in (1, *_microbatch_counts(plan)):
            accumulation = _accumulation_overrides(plan, n) if n > 1 else ()
            descriptions = [_MICROBATCHES_TEXT.format(n)] if accumulation else []
            descriptions += ["layers computed again"] if remat else []
            descriptions += ["state shared out"] if shard_state else []
            if len(descriptions) > 1:
                yield _make_suggestion(
                    plan, ", ".join(descriptions), (*accumulation, *remat, *shard_state)
                )


def _first_fitting(plan: RunPlan, suggestions: Iterator[Suggestion]) -> list[Suggestion]:
    """Those that fit, of each kind the first: the one with the fewest microbatches."""
    found: dict[str, Suggestion] = {}
    for suggestion in suggestions:
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
    """The cheapest other slice on which the run fits as it is, if there is one."""
    inputs, found = tuple(phase.inputs for phase in plan.phases), []
    for name, tpu_slice in all_slices().items():
        with contextlib.suppress(ConfigError):  # its devices cannot share the batch
            other_plan = make_plan(plan.experiment, tpu_slice, mfu=plan.mfu, inputs=inputs)
            if other_plan.fits:
                found.append(
                    Suggestion(description=f"another slice: {name}", overrides=(), plan=other_plan)
                )
    return sorted(found, key=_cost_usd)[:1]


def _is_replicated(plan: RunPlan) -> bool:
    """Whether every device holds the whole model."""
    return plan.experiment.mesh.axis_sizes(plan.tpu_slice.devices)[1:] == (1, 1)


def _phases_over_memory(plan: RunPlan) -> dict[int, PhasePlan]:
    return {i: p for i, p in enumerate(plan.phases) if p.memory.total > plan.usable_bytes}


def _microbatch_counts(plan: RunPlan) -> list[int]:
    """Into how many microbatches the phases that do not fit can be cut, ascending."""
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
