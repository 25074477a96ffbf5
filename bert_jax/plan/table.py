"""Plans in words and columns: one run on one slice in full, or a row for each of several slices."""

from collections.abc import Sequence

from bert_jax.models.config import SaveAll, Scanned
from bert_jax.plan.estimate import MARGIN, Bounds, PhasePlan, Plan
from bert_jax.plan.slices import Slice, prices_as_of
from bert_jax.plan.timing import least_batch
from bert_jax.plan.ways_out import WayOut

_LABEL, _COLUMN = 34, 16
_BOUND = 0.25
"""Links and update as a share of compute from which on the plan says that they bind the run."""


def describe(plan: Plan, ways: Sequence[WayOut] = ()) -> str:
    """A run on one slice, on one screen; `ways` are what to change when it does not fit."""
    sections = [_head(plan), _memory(plan), _update(plan), _run(plan), *_bound(plan)]
    if not plan.fits:
        sections.append(_way_lines(ways))
    return "\n\n".join(sections) + "\n"


def compare(plans: Sequence[tuple[Slice, Plan | str]]) -> str:
    """A row for each slice: its plan, or why there is none."""
    rows = [("slice", "devices", "GiB / room", "fits", "hours", "USD spot", "USD on demand")]
    rows += [_row(where, plan) for where, plan in plans if isinstance(plan, Plan)]
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(f"{cell:>{wide[i]}}" if i else f"{cell:<{wide[i]}}" for i, cell in enumerate(row))
        for row in rows
    ]
    lines += [f"{where.name}: {why}" for where, why in plans if isinstance(why, str)]
    return "\n".join(lines) + "\n"


def assumptions(mfu: float) -> str:
    """What stands behind the numbers, in the lines below them."""
    return (
        f"Estimates. Hours from compute alone at {mfu:.0%} of the chips' peak, which is an\n"
        "assumption (--mfu), to compute, gradients over the links and the optimizer one after\n"
        "another; without evaluation, checkpoints and compilation. Memory by formula, mostly\n"
        "within a tenth of what the compiler says (--compile asks it).\n"
        f"USD: list prices of {prices_as_of()}."
    )


def _row(where: Slice, plan: Plan) -> tuple[str, ...]:
    return (
        where.name,
        str(where.devices),
        f"{gib(plan.memory.total)} / {gib(plan.room)}",
        "yes" if plan.fits else "NO",
        _range(plan.hours),
        _usd(plan, spot=True),
        _usd(plan, spot=False),
    )


def _head(plan: Plan) -> str:
    where, compute = plan.where, plan.experiment.program.compute
    data, fsdp, tensor = plan.experiment.mesh.sizes(where.devices)
    loop = "scanned" if isinstance(compute.layers, Scanned) else "unrolled"
    kept = "all kept" if isinstance(compute.remat, SaveAll) else "computed again (remat)"
    return (
        f"{plan.experiment.name} on {where.name}: {where.chips} chips on {where.hosts} hosts, "
        f"{where.devices} devices of {where.device_hbm_gib:.2f} GiB "
        f"({where.generation.device_kind})\n"
        f"{plan.state.count:,} parameters; mesh data {data}, fsdp {fsdp}, tensor {tensor}; "
        f"{compute.dtype}, layers {loop}, {kept}"
    )


def _memory(plan: Plan) -> str:
    memories = [phase.memory for phase in plan.phases]
    verdicts = [
        "fits" if each.total <= plan.room else f"{gib(each.total - plan.room)} too much"
        for each in memories
    ]
    return columns(
        ("one device, GiB", *_lengths(plan)),
        ("parameters", *(gib(each.parameters) for each in memories)),
        ("optimizer state", *(gib(each.optimizer) for each in memories)),
        ("batch, microbatches' gradients", *(gib(each.batch + each.summed) for each in memories)),
        ("activations at their most, or", *(gib(each.activations) for each in memories)),
        ("gradients, if they are more", *(gib(each.gradients) for each in memories)),
        ("together", *(gib(each.total) for each in memories)),
        (f"room, {MARGIN:.0%} left free", *(gib(plan.room) for _ in memories)),
        ("verdict", *verdicts),
    )


def _update(plan: Plan) -> str:
    steps = [phase.step for phase in plan.phases]
    return columns(
        ("one update", *_lengths(plan)),
        ("rows", *(f"{phase.inputs.phase.batch_size:,}" for phase in plan.phases)),
        ("rows of a device at a time", *map(_device_rows, plan.phases)),
        ("tokens", *(f"{step.tokens:,.0f}" for step in steps)),
        ("model FLOPs", *(f"{step.flops:.3g}" for step in steps)),
        (f"compute at MFU {plan.mfu:.0%}, ms", *(milliseconds(step.compute) for step in steps)),
        ("gradients over the links, ms", *(milliseconds(step.links) for step in steps)),
        ("activations over the links, ms", *(milliseconds(step.sums) for step in steps)),
        ("optimizer in HBM, ms", *(milliseconds(step.update) for step in steps)),
        ("tokens a second", *(_rate(phase) for phase in plan.phases)),
    )


def _run(plan: Plan) -> str:
    several = len(plan.phases) > 1
    hours: list[Bounds] = [
        (low / 3600, high / 3600) for low, high in (phase.seconds for phase in plan.phases)
    ]
    steps = [phase.inputs.phase.steps for phase in plan.phases]
    rows = [
        ("the run", *_lengths(plan), *(["all"] if several else [])),
        ("updates", *(f"{n:,}" for n in [*steps, *([sum(steps)] if several else [])])),
        ("hours", *(_range(each) for each in [*hours, *([plan.hours] if several else [])])),
    ]
    for words, spot in (("USD, spot", True), ("USD, on demand", False)):
        price = plan.where.usd_per_hour(spot=spot)
        each = [] if price is None else [_range((low * price, high * price)) for low, high in hours]
        lacking = ["no list price"] if not each else []
        total = [_usd(plan, spot=spot)] if several and each else []
        rows.append((words, *each, *total, *lacking))
    return columns(*rows)


def _bound(plan: Plan) -> list[str]:
    """A line for each phase that waits for links and memory rather than for its products."""
    data, fsdp, _ = plan.experiment.mesh.sizes(plan.where.devices)
    lines = []
    for index, phase in enumerate(plan.phases):
        step, sizes = phase.step, phase.inputs.phase
        if not step.compute:
            continue
        share, sums = ((step.links + step.update) / step.compute, step.sums / step.compute)
        if sums > _BOUND:
            lines.append(
                f"length {sizes.length}: summing activations over the links is {sums:.0%} of "
                "compute, whatever the\nbatch (--set mesh.tensor=1 needs none)."
            )
        if share > _BOUND:
            enough = least_batch(step, sizes.batch_size, data * fsdp * sizes.accumulate)
            what = (
                f"length {sizes.length}: {sizes.batch_size:,} rows are few for these chips. What "
                f"does not grow with\nthe batch is {share:.0%} of compute"
            )
            if enough is not None:
                what += (
                    f"; from {enough:,} rows on it would be a tenth (--set\n"
                    f"train.phases.{index}.batch_size={enough}, with a learning rate for it and "
                    "fewer updates)"
                )
            lines.append(f"{what}.")
    return lines


def _way_lines(ways: Sequence[WayOut]) -> str:
    if not ways:
        return (
            "No way out was found: not with microbatches, layers computed again and state shared "
            "out,\nnor on another slice. Take a smaller model or shorter rows."
        )
    lines = ["It does not fit. What would, the cheapest first:"]
    for number, way in enumerate(ways, 1):
        plan = way.plan
        lines.append(
            f"  {number}. {way.what}: {gib(plan.memory.total)} of {gib(plan.room)} GiB, "
            f"{_range(plan.hours)} hours, on demand {_usd(plan, spot=False)}"
        )
        how = " ".join(f"'{each}'" if " " in each else each for each in way.overrides)
        lines.append(f"     --set {how}" if how else f"     --slice {plan.where.name}")
    return "\n".join(lines)


def columns(*rows: tuple[str, ...]) -> str:
    """A block of labelled rows under a row of heads."""
    head, *rest = rows
    lines = [f"{head[0]:<{_LABEL}}" + "".join(f"{cell:>{_COLUMN}}" for cell in head[1:])]
    lines += [
        f"  {row[0]:<{_LABEL - 2}}" + "".join(f"{cell:>{_COLUMN}}" for cell in row[1:])
        for row in rest
    ]
    return "\n".join(lines)


def _lengths(plan: Plan) -> list[str]:
    return [f"length {phase.inputs.phase.length}" for phase in plan.phases]


def _device_rows(phase: PhasePlan) -> str:
    accumulate = phase.inputs.phase.accumulate
    return (
        f"{accumulate} x {phase.rows_per_device}" if accumulate > 1 else f"{phase.rows_per_device}"
    )


def _rate(phase: PhasePlan) -> str:
    compute, no_overlap = phase.step.bounds
    if not compute:
        return "-"
    return _range((phase.step.tokens / no_overlap / 1e6, phase.step.tokens / compute / 1e6)) + " M"


def _usd(plan: Plan, *, spot: bool) -> str:
    usd = plan.usd(spot=spot)
    return "no list price" if usd is None else _range(usd)


def _range(bounds: Bounds) -> str:
    low, high = map(_figure, bounds)
    return low if low == high else f"{low} - {high}"


def _figure(value: float) -> str:
    if 0 < value < 0.01:
        return "<0.01"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def gib(size: float) -> str:
    """Bytes in GiB."""
    return f"{size / 2**30:.2f}"


def milliseconds(seconds: float) -> str:
    """Seconds in ms, three digits."""
    return f"{1e3 * seconds:.3g}"
