"""Formats plans: one slice in full, one line per slice to compare slices, or as JSON values."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bert_jax.apps.plan.compile import CompiledEstimate
from bert_jax.apps.plan.estimate import MEMORY_MARGIN, Bounds, PhasePlan, RunPlan, Suggestion
from bert_jax.apps.plan.timing import min_batch_size
from bert_jax.parallel.tpu_slices import Slice, prices_as_of

_LABEL_WIDTH, _COLUMN_WIDTH = 34, 16
_BOTTLENECK_FRACTION = 0.25
"""Communication and optimizer time are reported from this fraction of compute time on."""


def describe_plan(plan: RunPlan, suggestions: Sequence[Suggestion] = ()) -> str:
    """Formats the plan of a run on one slice; `suggestions` are listed if it does not fit."""
    sections = [
        _header_section(plan),
        _memory_section(plan),
        _step_section(plan),
        _totals_section(plan),
        *_bottleneck_lines(plan),
    ]
    if not plan.fits:
        sections.append(_suggestion_lines(suggestions))
    return "\n\n".join(sections) + "\n"


def compare_plans(plans: Sequence[tuple[Slice, RunPlan | str]]) -> str:
    """Formats one line per slice: its plan, or the reason why the run is impossible there."""
    rows = [("slice", "devices", "GiB / usable", "fits", "hours", "USD spot", "USD on demand")]
    rows += [_slice_row(tpu_slice, plan) for tpu_slice, plan in plans if isinstance(plan, RunPlan)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            f"{cell:>{widths[i]}}" if i else f"{cell:<{widths[i]}}" for i, cell in enumerate(row)
        )
        for row in rows
    ]
    lines += [
        f"{tpu_slice.name}: {reason}" for tpu_slice, reason in plans if isinstance(reason, str)
    ]
    return "\n".join(lines) + "\n"


def assumptions(mfu: float) -> str:
    """Returns the lines below the tables that state what the estimates assume."""
    return (
        f"These are estimates. Hours range from compute only, at an assumed MFU of {mfu:.0%}\n"
        "(--mfu), to compute, communication, and optimizer without overlap. They exclude\n"
        "evaluation, checkpoints, and compilation. Memory is traced from the loss, usually within\n"
        "10 % of the compiler's figure (--compile).\n"
        f"USD: list prices of {prices_as_of()}."
    )


def _slice_row(tpu_slice: Slice, plan: RunPlan) -> tuple[str, ...]:
    return (
        tpu_slice.name,
        str(tpu_slice.devices),
        f"{format_gib(plan.memory.total)} / {format_gib(plan.usable_bytes)}",
        "yes" if plan.fits else "NO",
        _format_range(plan.hours),
        _format_usd(plan, spot=True),
        _format_usd(plan, spot=False),
    )


def _header_section(plan: RunPlan) -> str:
    tpu_slice, compute = plan.tpu_slice, plan.experiment.objective.compute
    data, fsdp, tensor = plan.experiment.mesh.axis_sizes(tpu_slice.devices)
    layer_loop = compute.layer_loop
    remat_text = (
        "activations saved" if compute.remat == "none" else "activations recomputed (remat)"
    )
    teacher = plan.state.num_teacher_parameters
    teacher_text = f" and {teacher:,} of the teacher, which are not trained" if teacher else ""
    return (
        f"{plan.experiment.name} on {tpu_slice.name}: {tpu_slice.chips} chips on "
        f"{tpu_slice.hosts} hosts, {tpu_slice.devices} devices of "
        f"{tpu_slice.device_hbm_gib:.2f} GiB ({tpu_slice.generation.device_kind})\n"
        f"{plan.state.num_parameters:,} parameters{teacher_text}; mesh data {data}, fsdp {fsdp}, "
        f"tensor {tensor}; {compute.dtype}, layers {layer_loop}, {remat_text}"
    )


def _memory_section(plan: RunPlan) -> str:
    memories = [phase.memory for phase in plan.phases]
    fit_cells = [
        "fits"
        if each.total <= plan.usable_bytes
        else f"{format_gib(each.total - plan.usable_bytes)} over"
        for each in memories
    ]
    return format_columns(
        ("one device, GiB", *_length_headers(plan)),
        ("parameters", *(format_gib(each.parameters) for each in memories)),
        ("optimizer state", *(format_gib(each.optimizer) for each in memories)),
        (
            "batch, accumulated gradients",
            *(format_gib(each.batch + each.accumulated_gradients) for each in memories),
        ),
        ("peak activations, or", *(format_gib(each.activations) for each in memories)),
        ("gradients, whichever is larger", *(format_gib(each.gradients) for each in memories)),
        ("total", *(format_gib(each.total) for each in memories)),
        (
            f"usable, {MEMORY_MARGIN:.0%} left free",
            *(format_gib(plan.usable_bytes) for _ in memories),
        ),
        ("result", *fit_cells),
    )


def _step_section(plan: RunPlan) -> str:
    steps = [phase.step for phase in plan.phases]
    phases = [phase.inputs.phase for phase in plan.phases]
    targets = [f"{each.batch_size * each.target_length:,}" for each in phases]
    return format_columns(
        ("one step", *_length_headers(plan)),
        ("batch size", *(f"{phase.inputs.phase.batch_size:,}" for phase in plan.phases)),
        ("batch size per device", *map(_per_device_batch_size, plan.phases)),
        ("tokens", *(f"{step.tokens:,.0f}" for step in steps)),
        *([("target tokens", *targets)] if any(each.target_length for each in phases) else []),
        ("model FLOPs", *(f"{step.flops:.3g}" for step in steps)),
        (
            f"compute at MFU {plan.mfu:.0%}, ms",
            *(format_milliseconds(step.compute) for step in steps),
        ),
        (
            "gradient communication, ms",
            *(format_milliseconds(step.gradient_comm) for step in steps),
        ),
        (
            "activation communication, ms",
            *(format_milliseconds(step.activation_comm) for step in steps),
        ),
        ("optimizer (HBM traffic), ms", *(format_milliseconds(step.optimizer) for step in steps)),
        ("tokens per second", *(_tokens_per_second(phase) for phase in plan.phases)),
    )


def _totals_section(plan: RunPlan) -> str:
    has_several_phases = len(plan.phases) > 1
    hours: list[Bounds] = [
        (low / 3600, high / 3600) for low, high in (phase.seconds for phase in plan.phases)
    ]
    steps = [phase.inputs.phase.steps for phase in plan.phases]
    rows = [
        ("whole run", *_length_headers(plan), *(["all"] if has_several_phases else [])),
        ("steps", *(f"{n:,}" for n in [*steps, *([sum(steps)] if has_several_phases else [])])),
        (
            "hours",
            *(
                _format_range(each)
                for each in [*hours, *([plan.hours] if has_several_phases else [])]
            ),
        ),
    ]
    for label, spot in (("USD, spot", True), ("USD, on demand", False)):
        price = plan.tpu_slice.usd_per_hour(spot=spot)
        each = (
            []
            if price is None
            else [_format_range((low * price, high * price)) for low, high in hours]
        )
        missing_price = ["no list price"] if not each else []
        total = [_format_usd(plan, spot=spot)] if has_several_phases and each else []
        rows.append((label, *each, *total, *missing_price))
    return format_columns(*rows)


def _bottleneck_lines(plan: RunPlan) -> list[str]:
    """Returns a line for each phase limited by communication or memory rather than by compute."""
    data, fsdp, _ = plan.experiment.mesh.axis_sizes(plan.tpu_slice.devices)
    lines = []
    for index, phase in enumerate(plan.phases):
        step, phase_config = phase.step, phase.inputs.phase
        if not step.compute:
            continue
        overhead_fraction, activation_comm_fraction = (
            (step.gradient_comm + step.optimizer) / step.compute,
            step.activation_comm / step.compute,
        )
        if activation_comm_fraction > _BOTTLENECK_FRACTION:
            lines.append(
                f"length {phase_config.seq_length}: communicating activations takes "
                f"{activation_comm_fraction:.0%} of the compute time at\n"
                "any batch size (--set mesh.tensor=1 avoids it)."
            )
        if overhead_fraction > _BOTTLENECK_FRACTION:
            sufficient_batch_size = min_batch_size(
                step,
                phase_config.batch_size,
                data * fsdp * phase_config.gradient_accumulation_steps,
            )
            message = (
                f"length {phase_config.seq_length}: the batch size {phase_config.batch_size:,} is "
                "small for these chips. Gradient communication and\nthe optimizer, which do not "
                f"depend on it, take {overhead_fraction:.0%} of the compute time"
            )
            if sufficient_batch_size is not None:
                message += (
                    f";\nwith {sufficient_batch_size:,} it would be 10 % (--set "
                    f"train.phases.{index}.batch_size={sufficient_batch_size}, and\n"
                    "adapt the learning rate and the number of steps)"
                )
            lines.append(f"{message}.")
    return lines


def _suggestion_lines(suggestions: Sequence[Suggestion]) -> str:
    if not suggestions:
        return (
            "No change makes it fit: neither gradient accumulation, remat, and FSDP, nor another "
            "slice.\nUse a smaller model or shorter sequences."
        )
    lines = ["It does not fit. Changes that make it fit, the cheapest first:"]
    for number, suggestion in enumerate(suggestions, 1):
        plan = suggestion.plan
        lines.append(
            f"  {number}. {suggestion.description}: {format_gib(plan.memory.total)} of "
            f"{format_gib(plan.usable_bytes)} GiB, {_format_range(plan.hours)} hours, "
            f"USD on demand {_format_usd(plan, spot=False)}"
        )
        overrides = " ".join(f"'{each}'" if " " in each else each for each in suggestion.overrides)
        lines.append(
            f"     --set {overrides}" if overrides else f"     --slice {plan.tpu_slice.name}"
        )
    return "\n".join(lines)


def format_columns(*rows: tuple[str, ...]) -> str:
    """Formats labeled rows of equal-width columns below a header row."""
    header, *rest = rows
    lines = [
        f"{header[0]:<{_LABEL_WIDTH}}" + "".join(f"{cell:>{_COLUMN_WIDTH}}" for cell in header[1:])
    ]
    lines += [
        f"  {row[0]:<{_LABEL_WIDTH - 2}}" + "".join(f"{cell:>{_COLUMN_WIDTH}}" for cell in row[1:])
        for row in rest
    ]
    return "\n".join(lines)


def _length_headers(plan: RunPlan) -> list[str]:
    return [f"length {phase.inputs.phase.seq_length}" for phase in plan.phases]


def _per_device_batch_size(phase: PhasePlan) -> str:
    accumulation_steps = phase.inputs.phase.gradient_accumulation_steps
    return (
        f"{accumulation_steps} x {phase.per_device_batch_size}"
        if accumulation_steps > 1
        else f"{phase.per_device_batch_size}"
    )


def _tokens_per_second(phase: PhasePlan) -> str:
    compute, no_overlap = phase.step.bounds
    if not compute:
        return "-"
    return (
        _format_range((phase.step.tokens / no_overlap / 1e6, phase.step.tokens / compute / 1e6))
        + " M"
    )


def _format_usd(plan: RunPlan, *, spot: bool) -> str:
    usd = plan.usd(spot=spot)
    return "no list price" if usd is None else _format_range(usd)


def _format_range(bounds: Bounds) -> str:
    low, high = map(_format_number, bounds)
    return low if low == high else f"{low} - {high}"


def _format_number(value: float) -> str:
    if 0 < value < 0.01:
        return "<0.01"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def format_gib(size: float) -> str:
    """Formats bytes as GiB with two decimals."""
    return f"{size / 2**30:.2f}"


def format_milliseconds(seconds: float) -> str:
    """Formats seconds as milliseconds with three significant digits."""
    return f"{1e3 * seconds:.3g}"


def plan_to_json(
    plan: RunPlan,
    suggestions: Sequence[Suggestion] = (),
    compiled: Sequence[CompiledEstimate] = (),
    largest_batch_sizes: Sequence[int] = (),
) -> dict[str, Any]:
    """Converts a plan to JSON values; time and cost are pairs [compute only, no overlap].

    Args:
      plan: the plan of a run on a slice.
      suggestions: changes after which the run fits.
      compiled: the compiler's estimate of each phase, if it ran.
      largest_batch_sizes: the largest batch size of each phase that fits per the compiler.
    """
    tpu_slice, state = plan.tpu_slice, plan.state
    sizes = plan.experiment.mesh.axis_sizes(tpu_slice.devices)
    usd = {"spot": plan.usd(spot=True), "on_demand": plan.usd(spot=False)}
    return {
        "slice": tpu_slice.name,
        "chips": tpu_slice.chips,
        "hosts": tpu_slice.hosts,
        "devices": tpu_slice.devices,
        "device_hbm_bytes": int(tpu_slice.device_hbm_gib * 2**30),
        "usable_bytes": plan.usable_bytes,
        "mfu": plan.mfu,
        "mesh": dict(zip(("data", "fsdp", "tensor"), sizes, strict=True)),
        "parameters": state.num_parameters,
        "teacher_parameters": state.num_teacher_parameters,
        "fits": plan.fits,
        "excess_bytes": max(0, plan.memory.total - plan.usable_bytes),
        "hours": list(plan.hours),
        "usd": {name: None if each is None else list(each) for name, each in usd.items()},
        "phases": [_phase_to_json(phase) for phase in plan.phases],
        "compiled": [dataclasses.asdict(each) for each in compiled],
        "largest_batch_sizes": list(largest_batch_sizes),
        "suggestions": [
            {
                "description": suggestion.description,
                "set": list(suggestion.overrides),
                "slice": suggestion.plan.tpu_slice.name,
                "bytes": suggestion.plan.memory.total,
                "hours": list(suggestion.plan.hours),
            }
            for suggestion in suggestions
        ],
    }


def _phase_to_json(phase: PhasePlan) -> dict[str, Any]:
    inputs, step = phase.inputs, phase.step
    return {
        "seq_length": inputs.phase.seq_length,
        "target_length": inputs.phase.target_length,
        "steps": inputs.phase.steps,
        "batch_size": inputs.phase.batch_size,
        "gradient_accumulation_steps": inputs.phase.gradient_accumulation_steps,
        "per_device_batch_size": phase.per_device_batch_size,
        "batch_length_fractions": {
            str(sizes["L"]): fraction
            for sizes, fraction in zip(inputs.shapes, inputs.step_fractions, strict=True)
        },
        "memory_bytes": {**dataclasses.asdict(phase.memory), "total": phase.memory.total},
        "step": {
            "model_flops": step.flops,
            "tokens": step.tokens,
            "compute_seconds": step.compute,
            "gradient_comm_seconds": step.gradient_comm,
            "activation_comm_seconds": step.activation_comm,
            "optimizer_seconds": step.optimizer,
        },
        "seconds": list(phase.seconds),
    }


def describe_compiled(
    plan: RunPlan,
    estimates: Sequence[CompiledEstimate],
    versions: str,
    largest_batch_sizes: Sequence[int] = (),
) -> str:
    """Formats the compiler's memory in a column for each phase.

    Args:
      plan: the plan of the run.
      estimates: the compiler's estimate of each phase.
      versions: the versions of libtpu and JAX.
      largest_batch_sizes: the largest batch size of each phase that fits; empty if not requested.
    """
    lengths, usable = _length_headers(plan), plan.usable_bytes
    lines = [
        f"compiled by {versions} for {plan.tpu_slice.name}; not run on a TPU",
        format_columns(
            ("one device", *lengths),
            (
                "peak memory, GiB",
                *("-" if each.out_of_memory else format_gib(each.peak_bytes) for each in estimates),
            ),
            ("usable memory, GiB", *(format_gib(usable) for _ in estimates)),
            ("result", *("fits" if each.fits(usable) else "NO" for each in estimates)),
        ),
    ]
    for length, each in zip(lengths, estimates, strict=True):
        if each.out_of_memory is not None:
            lines.append(f"{length} does NOT fit: {each.out_of_memory}")
    for length, batch_size in zip(lengths, largest_batch_sizes, strict=False):
        lines.append(f"{length}, largest batch size that fits: {batch_size:,}")
    return "\n".join(lines) + "\n"
