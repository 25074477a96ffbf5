"""What to change when a run does not fit: each way is planned like the run itself, and must fit."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from bert_jax.config import override
from bert_jax.errors import ConfigError
from bert_jax.models.config import SaveAll
from bert_jax.plan.estimate import PhasePlan, Plan, make_plan
from bert_jax.plan.slices import all_slices

REMAT = ('program.compute.remat={"type": "RematLayer"}',)
FSDP = ("mesh.data=1", "mesh.fsdp=-1")
_SPLIT = "{} microbatches in each update"


@dataclass(frozen=True, kw_only=True)
class WayOut:
    """A change after which the run fits.

    Attributes:
      what: in words.
      overrides: for --set.
      plan: of the changed run; on another slice where the change is that.
    """

    what: str
    overrides: tuple[str, ...]
    plan: Plan


def ways_out(plan: Plan, most: int = 3) -> list[WayOut]:
    """Up to so many changes that make a run fit, the cheapest first.

    Microbatches, recomputation and sharded state are tried by themselves, and together if none of
    them is enough; beside them stands the cheapest slice on which the run fits as it is. Cost is
    the list price on demand of the hours with no overlap.
    """
    found = _fitting(plan, _single(plan)) or _fitting(plan, _together(plan))
    elsewhere = _elsewhere(plan)
    found.sort(key=_usd)
    return sorted([*found[: most - len(elsewhere)], *elsewhere], key=_usd)


def _usd(way: WayOut) -> float:
    usd = way.plan.usd(spot=False)
    return math.inf if usd is None else usd[1]


def _single(plan: Plan) -> Iterator[WayOut]:
    parts = _parts(plan)
    yield from (_changed(plan, _SPLIT.format(n), _split(plan, n)) for n in parts)
    if isinstance(plan.experiment.program.compute.remat, SaveAll):
        yield _changed(plan, "layers computed again in the backward pass", REMAT)
    if _copies(plan):
        yield _changed(plan, "parameters and optimizer state shared out", FSDP)


def _together(plan: Plan) -> Iterator[WayOut]:
    compute_again = () if plan.experiment.program.compute.remat != SaveAll() else REMAT
    for share_out in ((), FSDP) if _copies(plan) else ((),):
        for n in (1, *_parts(plan)):
            split = _split(plan, n) if n > 1 else ()
            words = [_SPLIT.format(n)] if split else []
            words += ["layers computed again"] if compute_again else []
            words += ["state shared out"] if share_out else []
            if len(words) > 1:
                yield _changed(plan, ", ".join(words), (*split, *compute_again, *share_out))


def _fitting(plan: Plan, ways: Iterator[WayOut]) -> list[WayOut]:
    """Those that fit, of each kind the first: the one with the fewest microbatches."""
    found: dict[str, WayOut] = {}
    for way in ways:
        kind = "".join(letter for letter in way.what if not letter.isdigit())
        if kind not in found and way.plan.fits:
            found[kind] = way
    return list(found.values())


def _changed(plan: Plan, what: str, overrides: tuple[str, ...]) -> WayOut:
    experiment = override(plan.experiment, overrides)
    inputs = tuple(
        dataclasses.replace(phase.inputs, phase=changed)
        for phase, changed in zip(plan.phases, experiment.train.phases, strict=True)
    )
    changed = make_plan(experiment, plan.where, mfu=plan.mfu, inputs=inputs)
    return WayOut(what=what, overrides=overrides, plan=changed)


def _elsewhere(plan: Plan) -> list[WayOut]:
    """The cheapest other slice on which the run fits as it is, if there is one."""
    inputs, found = tuple(phase.inputs for phase in plan.phases), []
    for name, where in all_slices().items():
        with contextlib.suppress(ConfigError):  # its devices cannot share the batch
            other = make_plan(plan.experiment, where, mfu=plan.mfu, inputs=inputs)
            if other.fits:
                found.append(WayOut(what=f"another slice: {name}", overrides=(), plan=other))
    return sorted(found, key=_usd)[:1]


def _copies(plan: Plan) -> bool:
    """Whether every device holds the whole model."""
    return plan.experiment.mesh.sizes(plan.where.devices)[1:] == (1, 1)


def _too_big(plan: Plan) -> dict[int, PhasePlan]:
    return {i: p for i, p in enumerate(plan.phases) if p.memory.total > plan.room}


def _parts(plan: Plan) -> list[int]:
    """Into how many microbatches the phases that do not fit can be cut, ascending."""
    rows = [phase.rows_per_device for phase in _too_big(plan).values()]
    return [n for n in range(2, min(rows) + 1) if all(each % n == 0 for each in rows)]


def _split(plan: Plan, parts: int) -> tuple[str, ...]:
    return tuple(
        f"train.phases.{index}.accumulate={parts * phase.inputs.phase.accumulate}"
        for index, phase in _too_big(plan).items()
    )
