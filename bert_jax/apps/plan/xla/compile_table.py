"""Formats the compiler's estimates of a run's phases in columns like those of `table.py`."""

from collections.abc import Sequence

from bert_jax.apps.plan.estimate import RunPlan
from bert_jax.apps.plan.table import format_columns, format_gib, format_milliseconds
from bert_jax.apps.plan.xla.compile_report import CompiledEstimate


def describe_compiled(
    plan: RunPlan,
    estimates: Sequence[CompiledEstimate],
    versions: str,
    largest_batch_sizes: Sequence[int] = (),
) -> str:
    """Formats a column for each phase.

    Args:
      plan: the plan of the run.
      estimates: the compiler's estimate of each phase.
      versions: the versions of libtpu and JAX.
      largest_batch_sizes: the largest batch size of each phase that fits; empty if not requested.
    """
    lengths = [f"length {phase.inputs.phase.seq_length}" for phase in plan.phases]
    lines = [
        f"compiled by {versions} for {plan.tpu_slice.name}; estimates, not measured on a TPU",
        format_columns(
            ("one device", *lengths),
            (
                "peak memory, GiB",
                *(_cell_or_dash(each, format_gib(each.peak_bytes)) for each in estimates),
            ),
            ("usable memory, GiB", *(format_gib(plan.usable_bytes) for _ in estimates)),
            ("result", *("fits" if each.fits(plan.usable_bytes) else "NO" for each in estimates)),
            (
                "by schedule, ms",
                *(
                    _cell_or_dash(each, format_milliseconds(each.schedule_seconds))
                    for each in estimates
                ),
            ),
            (
                "  of which attention kernels",
                *(
                    _cell_or_dash(each, format_milliseconds(each.kernel_seconds))
                    for each in estimates
                ),
            ),
            ("by roofline, ms", *(_roofline_cell(each) for each in estimates)),
            (
                "plus collectives, ms",
                *(
                    _cell_or_dash(each, format_milliseconds(each.collective_seconds))
                    for each in estimates
                ),
            ),
            ("MFU by schedule", *(_mfu_cell(each, "schedule") for each in estimates)),
            ("MFU by roofline", *(_mfu_cell(each, "roofline") for each in estimates)),
        ),
    ]
    for length, each in zip(lengths, estimates, strict=True):
        if each.out_of_memory is not None:
            lines.append(f"{length} does NOT fit: {each.out_of_memory}")
        else:
            lines.append(f"{length}, collectives: {_collectives_text(each)}")
    for length, batch_size in zip(lengths, largest_batch_sizes, strict=False):
        lines.append(f"{length}, largest batch size that fits: {batch_size:,}")
    return "\n".join(lines) + "\n"


def _cell_or_dash(estimate: CompiledEstimate, cell: str) -> str:
    return "-" if estimate.out_of_memory is not None else cell


def _roofline_cell(estimate: CompiledEstimate) -> str:
    return (
        "-" if estimate.roofline_seconds is None else format_milliseconds(estimate.roofline_seconds)
    )


def _mfu_cell(estimate: CompiledEstimate, name: str) -> str:
    mfu = estimate.mfu.get(name)
    return "-" if mfu is None else f"{mfu:.2f}"


def _collectives_text(estimate: CompiledEstimate) -> str:
    kinds = (estimate.collectives or {}).items()
    return ", ".join(
        f"{count:.0f} {kind} ({size / 1e6:.0f} MB in total)" for kind, (count, size) in kinds
    )
