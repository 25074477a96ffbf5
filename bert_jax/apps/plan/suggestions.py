"""Suggests changes for a run that does not fit; each suggestion is planned again and must fit."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from bert_jax.apps.plan.estimate import PhasePlan, RunPlan, make_plan
from bert_jax.config.config_lib import override
from bert_jax.errors import ConfigError
from bert_jax.parallel.tpu_slices import all_slices

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
