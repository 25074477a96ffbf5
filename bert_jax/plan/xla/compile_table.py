"""What the compiler says of a run's phases, in columns like those of `table.py`."""

from collections.abc import Sequence

from bert_jax.plan.estimate import RunPlan
from bert_jax.plan.table import format_columns, format_gib, format_milliseconds
from bert_jax.plan.xla.compile_report import CompiledEstimate


def describe_compiled(
    plan: RunPlan,
    estimates: Sequence[CompiledEstimate],
    versions: str,
    largest_batch_sizes: Sequence[int] = (),
) -> str:
    """A column for each phase.

    Args:
      versions: of the compiler.
      largest: rows of the largest batch of each phase that fits, where that was asked.
    """
    lengths = [f"length {phase.inputs.phase.seq_length}" for phase in plan.phases]
    lines = [
        f"compiled by {versions} for {plan.tpu_slice.name}; estimates: nothing was run on a TPU",
        format_columns(
            ("one device", *lengths),
            (
                "peak of memory, GiB",
                *(_cell_or_dash(each, format_gib(each.peak_bytes)) for each in estimates),
            ),
            ("room, GiB", *(format_gib(plan.usable_bytes) for _ in estimates)),
            ("verdict", *("fits" if each.fits(plan.usable_bytes) else "NO" for each in estimates)),
            (
                "by schedule, ms",
                *(
                    _cell_or_dash(each, format_milliseconds(each.schedule_seconds))
                    for each in estimates
                ),
            ),
            (
                "  of that attention kernels",
                *(
                    _cell_or_dash(each, format_milliseconds(each.kernel_seconds))
                    for each in estimates
                ),
            ),
            ("by roofline, ms", *(_roofline_cell(each) for each in estimates)),
            (
                "collectives, ms (on top)",
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
        lines.append(f"{length}, the largest batch that fits: {batch_size:,} rows")
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
        f"{count:.0f} {kind} of {size / 1e6:.0f} MB in all" for kind, (count, size) in kinds
    )
